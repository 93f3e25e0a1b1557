"""Programs that use libtorch_ops_c: of the documentation, by CMake, under sanitizers, hello."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from programs import ROOT, load_setup_py, needs, output_of

import torch_ops_host as host

FILES = Path(__file__).parent / "c_api"
FLAGS = [f"-I{host.get_include()}", f"-L{host.get_library_dir()}", "-ltorch_ops_c", "-lm"]
FLAGS += [f"-Wl,-rpath,{host.get_library_dir()}"]


@needs("c++")
def test_parts_of_calls_on_a_device(tmp_path: Path) -> None:
    program = tmp_path / "device_parts"
    own = (ROOT / "src" / "c_api" / name for name in ("own_program.cpp", "thread_pool.cpp"))
    flags = ["-std=c++17", "-pthread", f"-I{ROOT / 'src'}", f"-I{host.get_include()}"]
    failure = ROOT / "src" / "c_api" / "frame" / "failure.cpp"
    output_of("c++", *flags, FILES / "device_parts.cpp", *own, failure, "-o", program)
    assert output_of(program) == ""


VALGRIND = [
    *("env", "CUDA_VISIBLE_DEVICES=", "valgrind", "-q", "--error-exitcode=9", "--leak-check=full"),
    *("--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"),
]


@needs("cc")
@pytest.mark.parametrize("by", [[], pytest.param(VALGRIND, marks=needs("valgrind"))])
def test_a_c_program(tmp_path: Path, by: list[str]) -> None:
    program = tmp_path / "check"
    output_of("cc", "-std=c99", "-Wall", "-Werror", "-g", FILES / "check.c", "-o", program, *FLAGS)
    assert "all checks passed" in output_of(*by, program)


@needs("cc")
def test_it_is_opened_and_closed_again_and_again(tmp_path: Path) -> None:
    """The threads of a call outlive it, and must not lose their code to dlclose."""
    program = tmp_path / "reopen"
    output_of("cc", "-std=c99", "-Wall", "-Werror", FILES / "reopen.c", "-o", program, "-ldl")
    environ = {**os.environ, "TORCH_OPS_NUM_THREADS": "4"}
    assert output_of(program, host.library_path(), env=environ) == "opened and closed 100 times\n"


@needs("cmake", "cc", "c++")
def test_cmake_finds_it(tmp_path: Path) -> None:
    prefix = Path(host.get_library_dir()).parent
    configure = ["cmake", "-S", FILES / "cmake", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}"]
    output_of(*configure)
    output_of("cmake", "--build", tmp_path)
    assert "all checks passed" in output_of(tmp_path / "from_c")
    assert output_of(tmp_path / "from_cpp") == "success: 3 1\n"
    text = (FILES / "cmake" / "CMakeLists.txt").read_text().replace("0.1", "99.0")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "CMakeLists.txt").write_text(text)
    configure[2] = tmp_path / "newer"
    configure[4] = tmp_path / "newer" / "build"
    result = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "version" in result.stderr


@needs("pkg-config", "cc")
def test_pkg_config_finds_it(tmp_path: Path) -> None:
    environ = {**os.environ, "PKG_CONFIG_PATH": str(Path(host.get_library_dir()) / "pkgconfig")}
    flags = output_of("pkg-config", "--cflags", "--libs", "torch_ops_c", env=environ).split()
    version = output_of("pkg-config", "--modversion", "torch_ops_c", env=environ)
    assert version.strip() == host.version()
    output_of("cc", FILES / "check.c", "-o", tmp_path / "check", *flags, "-lm")
    assert "all checks passed" in output_of(tmp_path / "check")


class TestDocumentedPrograms:
    """The programs in docs/c_api.md."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """With each block that has a file's name behind its language."""
        text = (ROOT / "docs" / "c_api.md").read_text()
        for name, code in re.findall(
            r"^```\S+ ([\w.]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        ):
            (tmp_path / name).write_text(code)
        return tmp_path

    @needs("cc")
    @pytest.mark.parametrize(
        ("name", "printed"), [("gather", "2.5 0.5 2.5 1.5\n"), ("reduce", "5 0 3\n36 0 75\n")]
    )
    def test_c(self, folder: Path, name: str, printed: str) -> None:
        program = folder / name
        output_of("cc", "-std=c99", "-Wall", f"{program}.c", "-o", program, *FLAGS)
        assert output_of(program) == printed

    @needs("cmake", "c++")
    def test_cpp_with_cmake(self, folder: Path) -> None:
        prefix = f"-DCMAKE_PREFIX_PATH={host.get_prefix()}"
        output_of("cmake", "-S", folder, "-B", folder / "build", prefix)
        output_of("cmake", "--build", folder / "build")
        assert output_of(folder / "build" / "sums") == "3 4 6 8\n"

    @needs("cc")
    def test_cython(self, folder: Path) -> None:
        pytest.importorskip("Cython")
        text = (ROOT / "examples" / "hello" / "setup.py").read_text()
        (folder / "setup.py").write_text(text.replace("hello_cython", "picks"))
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "setup.py", "build_ext", "--inplace"]
        output_of(*command, cwd=folder, env=environ)
        code = """
import numpy, picks
out = numpy.empty(2)
picks.pick(numpy.array([1.5, 2.5]), numpy.array([1, 0]), out)
print(out.tolist())
try:
    picks.pick(numpy.ones(2), numpy.array([1, 2]), out)
except ValueError as error:
    print(error)
"""
        text = output_of(sys.executable, "-c", code, cwd=folder, env=environ)
        assert text.startswith("[2.5, 1.5]\ntorch_ops_gather: index[1] is 2, out of range")


@needs("nvcc")
def test_headers_for_cuda_programs(tmp_path: Path) -> None:
    """Compiled here; run where there is a GPU."""
    source = tmp_path / "timed.cu"
    source.write_text("""
#include <torch_ops/timing.h>
__global__ void fill(float* data, int n) { if (threadIdx.x < n) data[threadIdx.x] = n; }
template <class A, class B> cudaError_t nothing() { return cudaSuccess; }
int main() {
  TORCH_OPS_CHECK(sizeof(float) == 4);
  TORCH_OPS_CHECK_CUDA(nothing<int, float>());
  try {
    TORCH_OPS_CHECK(1 > 2, "one is ", 1);
    return 1;
  } catch (const std::runtime_error& error) {
    std::printf("%s\\n", error.what());
  }
  try {
    TORCH_OPS_CHECK_CUDA(cudaSetDevice(999));
    return 1;
  } catch (const torch_ops::CudaError& error) {
    std::printf("%s\\n", error.what());
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return 0;
  float* data;
  TORCH_OPS_CHECK_CUDA(cudaMalloc(&data, 128));
  TORCH_OPS_TIME(fill<<<1, 32>>>(data, 32));
  const float ms = TORCH_OPS_TIMED(fill<<<1, 32>>>(data, 32));
  torch_ops::CudaTimer timer;
  for (int i = 0; i < 3; ++i) {
    timer.start();
    fill<<<1, 32>>>(data, 32);
    timer.stop();
    TORCH_OPS_CHECK(timer.milliseconds() > 0);
  }
  try {
    TORCH_OPS_TIME(fill<<<1, 5000>>>(data, 32));
    return 1;
  } catch (const torch_ops::CudaError& error) {
    std::printf("%s\\n", error.what());
  }
  return ms > 0 ? 0 : 1;
}
""")
    program = tmp_path / "timed"
    output_of("nvcc", "-std=c++17", f"-I{host.get_include()}", source, "-o", program)
    text = output_of(program)
    assert "timed.cu:9: 1 > 2 does not hold: one is 1" in text
    assert re.search(r"timed.cu:15: cudaSetDevice\(999\): cudaError\w+ \(.+\)", text)
    if host.device_count() > 0:
        assert re.search(r"timed.cu:24: fill<<<1, 32>>>\(data, 32\): \d+\.\d{3} ms", text)
        # Which of the two it is depends on CUDA's version.
        assert re.search(r"cudaGetLastError\(\): cudaErrorInvalid(Configuration|Value) \(", text)


@pytest.fixture(scope="module")
def device_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's part between its functions and its kernels, on devices that are no GPUs."""
    program = tmp_path_factory.mktemp("fake_cuda") / "device_calls"
    sources = load_setup_py().setup_c_library.kernel_sources(ROOT, ".cpp")
    not_called = {
        *("add_along_cpu.cpp", "bag_cpu.cpp", "index_cpu.cpp", "mask_cpu.cpp"),
        *("peers_cpu.cpp", "reduce_cpu.cpp", "segments_cpu.cpp", "sigmoid_cpu.cpp", "sums_cpu.cpp"),
    }
    output_of(
        *("nvcc", "-std=c++17", "-cudart", "none", "-Xcompiler", "-pthread"),
        "-DTORCH_OPS_WITH_CUDA",
        *('-DTORCH_OPS_VERSION="0"', '-DTORCH_OPS_BUILD_CONFIG="archs=none"'),
        *(f"-I{ROOT / 'src'}", f"-I{host.get_include()}"),
        *(FILES / "fake_cuda.cpp", FILES / "device_calls.cu"),
        ROOT / "src" / "c_api" / "gpu" / "runtime.cu",
        *(path for path in sources if path.name not in not_called),
        # The kernels that this program has no calls of are not there.
        *("-Xcompiler", "-no-pie", "-Xlinker", "--unresolved-symbols=ignore-all"),
        *("-o", program),
    )
    return program


@pytest.mark.slow
@needs("nvcc")
@pytest.mark.parametrize("what", ["threads that end", "graphs", "two devices", "no code", "fork"])
def test_on_fake_devices(device_calls: Path, what: str) -> None:
    output_of(device_calls, what)


@needs("c++")
@pytest.mark.slow
@pytest.mark.timeout(900)  # minutes of compiling
def test_random_calls_under_sanitizers(tmp_path: Path) -> None:
    """AddressSanitizer and UndefinedBehaviorSanitizer, over the library's own sources."""
    program = tmp_path / "fuzz"
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    try:
        output_of("c++", *sanitize, "-x", "c++", "-", "-o", program, input="int main() {}")
    except AssertionError:
        pytest.skip("this compiler has no sanitizers")
    library = load_setup_py().setup_c_library.kernel_sources(ROOT, ".cpp")
    sources = [*library, FILES / "fuzz.cpp"]
    objects = [tmp_path / f"{number}.o" for number in range(len(sources))]

    def compile(source: Path, target: Path) -> None:
        output_of(
            *("c++", "-std=c++17", "-O0", "-g1", "-pthread", "-fno-trapping-math", *sanitize),
            *('-DTORCH_OPS_VERSION="0"', '-DTORCH_OPS_BUILD_CONFIG=""'),
            *(f"-I{ROOT / 'src'}", f"-I{host.get_include()}", "-c", source, "-o", target),
        )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile, sources, objects))
    output_of("c++", "-pthread", *sanitize, *objects, "-o", program)
    # Tests may run with more memory mapped before them than AddressSanitizer likes.
    assert "fuzz passed" in output_of(program, "800", "1", env={**os.environ, "LD_PRELOAD": ""})


# ---- hello


HELLO = {f"Hello from thread {n} of 8" for n in range(8)}


class TestHello:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A copy of the example, so that nothing is left in it."""
        return Path(shutil.copytree(ROOT / "examples" / "hello", tmp_path / "hello"))

    @pytest.fixture
    def environ(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}

    @pytest.mark.parametrize("way", ["hello_link.c", "hello_dlopen.c", "hello_ctypes.py",
                                     "hello_cython.pyx"])  # fmt: skip
    def test_as_the_readme_says(self, folder: Path, environ: dict[str, str], way: str) -> None:
        readme = (folder / "README.md").read_text()
        found = re.search(rf"\({re.escape(way)}\) \| `(.+)` \|", readme)
        assert found is not None
        python = shutil.which("python", path=environ["PATH"])
        command = found[1] if python else found[1].replace("python ", f"{sys.executable} ")
        text = output_of("bash", "-c", command, cwd=folder, env=environ)
        lines = [line for line in text.splitlines() if line.startswith("Hello")]
        assert len(lines) == 8
        assert set(lines) == HELLO

    def test_the_comment_in_a_file_says_the_same(self, folder: Path) -> None:
        readme = (folder / "README.md").read_text()
        for name in ("hello_link.c", "hello_dlopen.c"):
            build, run = re.findall(r"^ \*   (.+)$", (folder / name).read_text(), re.MULTILINE)
            assert f"`{build} && {run}`" in readme

    def test_from_the_package(self, capfd: pytest.CaptureFixture[str]) -> None:
        host.hello(8)
        assert set(capfd.readouterr().out.splitlines()) == HELLO
        host.hello(0)
        assert capfd.readouterr().out == ""
        with pytest.raises(ValueError, match="threads must be between 0 and 1024"):
            host.hello(2000)
