#!/usr/bin/env bash
# Everything that needs a GPU, in one command, on a machine that has torch and nvcc and may have no
# network: builds for the GPU that is visible, then runs the parts asked for.
#
#   tools/gpu_check.sh [--build] [--tests] [--sanitize] [--bench [NAME ...]] [--demo] [--out DIR]
#
#   --build      build in place
#   --tests      the whole suite, slow tests as TEST_ARGS says (default: --slow=sample)
#   --sanitize   the tests marked sanitizer under compute-sanitizer: memcheck, racecheck, initcheck
#   --bench      python -m benchmarks.NAME --out DIR for each NAME, or for every benchmark
#   --demo       the example examples/g2_energies, on the GPU
#   --out        where logs, figures and plots go (default: build/gpu)
#
# Without a part: all of them. A part that fails does not keep the next from running; the exit status
# is 1 when any failed. Wheels in .whl/ are made importable for packages that the machine lacks.
# PYTHON names the interpreter (default: python3).
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
out=build/gpu
parts=()
benchmarks=()
while (($#)); do
  case $1 in
    --build | --tests | --sanitize | --demo) parts+=("${1#--}") ;;
    --bench)
      parts+=(bench)
      while (($# > 1)) && [[ $2 != --* ]]; do
        benchmarks+=("$2")
        shift
      done
      ;;
    --out)
      out=${2:?--out needs a folder}
      shift
      ;;
    *)
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
      exit 2
      ;;
  esac
  shift
done
((${#parts[@]})) || parts=(build tests sanitize bench demo)
mkdir -p "$out"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
shopt -s nullglob
for wheel in .whl/*.whl; do
  "$PYTHON" -m zipfile -e "$wheel" "$scratch/site"
done
# Last, so that what the machine has goes before what was carried here.
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}:$scratch/site"
export PYTHONUNBUFFERED=1

build() { "$PYTHON" setup.py build_ext --inplace && "$PYTHON" -m torch_ops; }

# -v names each test as it ends, so that a run that is cut off tells which failed.
# shellcheck disable=SC2086 # TEST_ARGS holds several arguments
tests() { "$PYTHON" -m pytest -v ${TEST_ARGS:---slow=sample}; }

sanitize() {
  local sanitizer failed=0 tool
  sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
  # Errors of calls to CUDA are raised by those who make them; how many parameters a kernel has the
  # runtime tells by an error.
  for tool in "memcheck --report-api-errors no" racecheck initcheck; do
    echo "== compute-sanitizer $tool"
    # torch's pool would hide accesses beyond a tensor, which is a small part of a pooled block.
    # timeout=0: no test is to fail for being slow here.
    # shellcheck disable=SC2086 # a tool and its options
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool $tool --error-exitcode 86 \
      "$PYTHON" -m pytest -q -m sanitizer -p no:cacheprovider -o timeout=0 ||
      failed=1
  done
  return $failed
}

bench() {
  local failed=0 name file
  if ((${#benchmarks[@]} == 0)); then
    for file in benchmarks/[a-z]*.py; do
      benchmarks+=("$(basename "$file" .py)")
    done
  fi
  for name in "${benchmarks[@]}"; do
    echo "== benchmark $name"
    "$PYTHON" -m "benchmarks.$name" --out "$out" || failed=1
  done
  return $failed
}

demo() { "$PYTHON" examples/g2_energies/train.py --device cuda --out "$out/demo"; }

summary=()
status=0
for part in "${parts[@]}"; do
  echo "==== $part"
  start=$SECONDS
  if "$part" 2>&1 | tee "$out/$part.log"; then
    result=passed
  else
    result=FAILED
    status=1
  fi
  summary+=("$(printf '%-10s%-8s%4d s   %s' "$part" $result $((SECONDS - start)) "$out/$part.log")")
  if [[ $part == build && $result == FAILED ]]; then
    break # nothing after it would tell more
  fi
done

# What matters once more, at the end, where it is not buried.
for part in "${parts[@]}"; do
  [[ -f $out/$part.log ]] || continue
  case $part in
    tests) grep -E '^(FAILED|ERROR) | (FAILED|ERROR) |^=+ .*(passed|failed|error)' "$out/$part.log" | tail -n 40 ;;
    sanitize) grep -E '^== |========= (ERROR SUMMARY|RACECHECK SUMMARY)|(passed|failed)' "$out/$part.log" ;;
  esac
done
printf '%s\n' "${summary[@]}"
exit $status
