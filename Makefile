# `make demo` or `make test` on a fresh machine does all the set-up. `make help` lists the rest.
#
# Where torch is installed for PYTHON (python3 unless given), that is used and nothing is installed.
# Else a virtual environment .venv is made, with torch and, where there is a GPU but no nvcc, the
# compiler.

SHELL := /bin/bash
.SHELLFLAGS := -e -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
# The newest that is supported; .ci/run tests the oldest.
TORCH ?= torch==$(lastword $(shell sed -n 's/^TORCH = (\(.*\))/\1/p' torch_ops/_install/supported.py | tr -d '",')).*
NVCC := cuda-toolkit[nvcc,cccl,crt,nvvm]==13.0.2
TEST_ARGS ?=
BENCH_OUT ?= build/bench
PYTHON ?= python3

# Where PYTHON finds its torch: in our own .venv, elsewhere, or nowhere. A Python named by the user
# may have any torch; python3's is taken unasked where it is supported.
asked := $(if $(filter file,$(origin PYTHON)),False,True)
find_torch := import importlib.metadata as m, os, sys; \
  own = os.path.realpath(sys.prefix) == os.path.realpath("$(VENV)"); \
  minor = ".".join(m.version("torch").split(".")[:2]); \
  sys.path.insert(0, "torch_ops/_install"); import supported; \
  print("own" if own else "torch" if minor in supported.TORCH or $(asked) else "other")
found := $(shell $(PYTHON) -c '$(find_torch)' 2>/dev/null)

ifeq ($(found),torch)
  RUN := PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON)
else
  ifeq ($(filter file,$(origin PYTHON))$(filter own,$(found)),)
    $(if $(filter-out help clean,$(MAKECMDGOALS)),$(error $(PYTHON) \
      $(if $(shell command -v $(PYTHON)),has no torch. Install $(TORCH) there,is not there. Name another), \
      or leave PYTHON out: then .venv is made))
  endif
  RUN := PYTHONPATH="$(CURDIR)" $(VENV)/bin/python
  # A stamp for each step, so that a second call does nothing twice. What a build needs is part of
  # its name: a .venv from before that grew gets the rest.
  BUILD_NEEDS := "setuptools>=70.1,<82" wheel ninja "cython>=3.0"
  READY := $(VENV)/.ready-$(subst =,,$(TORCH:.*=))-$(firstword $(shell echo '$(BUILD_NEEDS)' | cksum))
  INSTALLED := $(VENV)/.installed
  DOCS_TOOLS := $(VENV)/.docs-tools
  RELEASE_TOOLS := $(VENV)/.release-tools
endif

# Folders too: their times change when a file comes or goes. What else changes a build, the
# interpreter, our own torch and the variables that setup.py honours, is part of the stamp's name.
SOURCES := setup.py setup_c_library.py pyproject.toml torch_ops/_version.py $(shell find src) \
  $(wildcard torch_ops/_install/*.py) torch_ops/jit/headers/vector_math.h \
  $(wildcard torch_ops_host/*.p[xy]* torch_ops_host/include/*.h)
BUILT := build/.built-$(firstword $(shell echo '$(RUN)' '$(READY)' "$$TORCH_OPS_CPU_ONLY" "$$FORCE_CUDA" \
  "$$CUDA_HOME" "$$TORCH_CUDA_ARCH_LIST" | cksum))

.PHONY: help install build new-op demo test bench matrix sdist try-wheel release supported changelog lint format docs wheel gpu clean
help:     ## print this list
	@sed -n 's/^\([a-z-]*\): .*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18
	@echo
	@echo '  make test PYTHON=python3.12        use this Python, which has torch; nothing is installed'
	@echo '  make test TEST_ARGS="-k relu"      arguments for pytest'

install: $(BUILT) $(INSTALLED) ## set everything up: environment, torch, compiler, build
	@$(RUN) -c 'import torch_ops' || $(RUN) setup.py build_ext --inplace # another torch, say
	@$(RUN) -m torch_ops

build: | $(READY) ## build in place; with OP=relu that op's module and the kernel library alone
	$(RUN) setup.py build_ext --inplace $(if $(OP),--op=$(OP))

new-op: ## write the files of a new elementwise op: make new-op NAME=softplus
	$(if $(NAME),,$(error make new-op NAME=<name of the op>))
	$(RUN) tools/new_op.py $(NAME)

demo: needs-demo $(BUILT) $(INSTALLED) ## train the example, examples/g2_energies
	$(RUN) examples/g2_energies/train.py

test: needs-test $(BUILT) $(INSTALLED) ## run the tests, without the slow ones
	OMP_WAIT_POLICY=passive $(RUN) -m pytest $(in_parallel) $(TEST_ARGS)

bench: needs-bench $(BUILT) $(INSTALLED) ## run the benchmarks; figures and plots go to build/bench
	@mkdir -p $(BENCH_OUT)
	for file in benchmarks/[a-z]*.py; do \
	  $(RUN) -m "benchmarks.$$(basename "$$file" .py)" --out $(BENCH_OUT); \
	done
	$(RUN) -m benchmarks.messages --compile --out $(BENCH_OUT)

matrix: $(BUILT) $(INSTALLED) ## bindings and tests for each supported torch, or TORCH_VERSION=2.13
	$(RUN) tools/matrix.py $(if $(TORCH_VERSION),--torch $(TORCH_VERSION)) $(MATRIX_ARGS)

sdist: $(INSTALLED) ## make the source archive, in dist/
	@$(call needs,build)
	$(RUN) -m build --sdist --no-isolation

wheel: $(RELEASE_TOOLS) ## make the wheel for this Python, all GPUs, and each supported torch
	@$(call needs,auditwheel)
	$(RUN) tools/wheel.py $(WHEEL_ARGS) # --arch 9.0 and --torch 2.13, say, for a smaller one

try-wheel: ## install the wheel of dist/ into a new environment, with TORCH_VERSION=2.13, and run it
	$(PYTHON) tools/try_wheel.py $(if $(TORCH_VERSION),--torch $(TORCH_VERSION)) $(TRY_ARGS)

release: $(INSTALLED) ## make a release but for the upload: make release VERSION=0.2.0 [DRY_RUN=1]
	$(RUN) tools/release.py $(VERSION) $(if $(DRY_RUN),--dry-run)

# Before all that is set up first.
ifneq ($(filter release,$(MAKECMDGOALS)),)
  $(if $(VERSION),,$(error make release VERSION=<the next version> [DRY_RUN=1]))
endif

supported: ## print the versions of torch and Python, of CUDA, and the GPUs that are supported
	@$(PYTHON) torch_ops/_install/supported.py

changelog: $(INSTALLED) ## print what the next version's section of CHANGELOG.md will be
	@$(call needs,towncrier)
	@$(RUN) -m towncrier build --draft --version unreleased

lint: $(INSTALLED) ## check form and types: ruff, clang-format, mypy, the changelog, the workflows
	@$(call needs,ruff clang_format mypy towncrier check_jsonschema)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -c 'from clang_format import clang_format; clang_format()' --dry-run -Werror $(CXX_FILES)
	$(RUN) -m mypy
	$(RUN) -m towncrier build --draft --version unreleased > /dev/null
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml

format: $(INSTALLED) ## bring all files into the form that lint checks
	@$(call needs,ruff clang_format)
	$(RUN) -m ruff check --fix --exit-zero .
	$(RUN) -m ruff format .
	$(RUN) -c 'from clang_format import clang_format; clang_format()' -i $(CXX_FILES)

docs: needs-docs $(BUILT) $(INSTALLED) ## build the documentation site, build/docs; a warning is an error
	@rm -rf build/docs
	$(RUN) -m sphinx -q -W --keep-going -E -b html -c docs/site -d build/docs_doctrees . build/docs
	@echo "The site begins with build/docs/index.html; a browser needs no server to show it."

gpu: ## on a machine with a GPU: build, tests, compute-sanitizer, benchmarks
	PYTHON=$(PYTHON) tools/gpu_check.sh --build --tests --sanitize --bench --out build/gpu

clean: ## remove what was built; .venv stays
	rm -rf build dist *.egg-info torch_ops/_ext/torch* \
	  torch_ops_host/*.so torch_ops_host/lib torch_ops_host/include/torch_ops

CXX_FILES := $(shell find src torch_ops_host/include examples/hello tests torch_ops/jit/headers -name '*.cpp' -o -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

# Each file of tests in one process of a few, where there is pytest-xdist. Their threads sleep while
# they wait (OMP_WAIT_POLICY): all processes together have more of them than there are cores.
in_parallel = $(shell $(RUN) -c 'import importlib.util as u, os; \
  workers = min(len(os.sched_getaffinity(0)), 4); \
  print(f"-n {workers} --dist loadfile" if workers > 1 and u.find_spec("xdist") else "")')

# Before a build of minutes, but after what is installed into .venv.
NEEDED_demo := numpy rich matplotlib
NEEDED_test := pytest hypothesis expecttest numpy matplotlib rich cuda.core yaml build towncrier twine
NEEDED_bench := numpy matplotlib
NEEDED_docs := sphinx furo myst_parser sphinx_copybutton matplotlib numpy
.PHONY: needs-demo needs-test needs-bench needs-docs
needs-docs: $(DOCS_TOOLS)
needs-demo needs-test needs-bench needs-docs: needs-%: $(INSTALLED)
	@$(call needs,$(NEEDED_$*))

# Says in one line what an environment that is not ours to install into lacks.
needs = $(RUN) -c 'import importlib.util as u, sys; \
  found = lambda name: all(u.find_spec(".".join(name.split(".")[:n + 1])) \
    for n in range(name.count(".") + 1)); \
  missing = [name for name in "$(1)".split() if not found(name)]; \
  missing and sys.exit(f"{sys.executable} lacks: {chr(32).join(missing)}. Install them there, \
or run make where python3 has no torch: then .venv is made, with all of it.")'

$(VENV)/.ready-%:
	[ -x $(VENV)/bin/python ] || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install "$(TORCH)" $(BUILD_NEEDS)
	if [ -n "$$FORCE_CUDA$(DRIVER)" ] && [ -z "$$TORCH_OPS_CPU_ONLY$$CUDA_HOME" ] \
	    && ! command -v nvcc && ! [ -x /usr/local/cuda/bin/nvcc ]; then \
	  $(VENV)/bin/python -m pip install "$(NVCC)"; \
	fi
	touch $@

# Where there is no driver of a GPU, the build is for the CPU, and needs no CUDA compiler.
DRIVER := $(wildcard /proc/driver/nvidia/version /dev/nvidiactl /usr/lib/wsl/lib/libcuda.so.1)

# In place, so that ninja compiles only what has changed.
$(BUILT): $(SOURCES) | $(READY)
	$(RUN) setup.py build_ext --inplace
	@mkdir -p build
	@rm -f build/.built-*
	@touch $@

# Makes `import torch_ops` work from any folder; the objects of the build before are used again.
$(VENV)/.installed: pyproject.toml | $(BUILT)
	$(VENV)/bin/python -m pip install --quiet --no-build-isolation -e ".[test,demo,lint,release]"
	touch $@

# An extra of pyproject.toml. Not part of every set-up: who uses or tests the library needs none.
$(VENV)/.%-tools: pyproject.toml | $(READY)
	$(VENV)/bin/python -m pip install --quiet -r <($(VENV)/bin/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"], sep="\n")')
	touch $@
