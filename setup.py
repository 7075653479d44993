"""Build of the mydist package: setuptools packs the Python files, CMake compiles the C++ parts.

Environment:
    MYDIST_WITH_MPI, MYDIST_WITH_GLOO, MYDIST_WITH_CUDA,
    MYDIST_WITH_PS                                        AUTO (default), ON, OFF or LATER
    CMAKE_ARGS        further arguments of the configure step, split like a shell would
    MAX_JOBS          parallel compilations; default: the number of cores
    MYDIST_BUILD_DIR  the CMake build tree; default: build/cmake-<python tag>-<platform>
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BACKENDS = ("MPI", "GLOO", "CUDA", "PS")
BINDINGS = ("_C", "_c10d", "_ps")


def build_dir() -> Path:
    """The CMake build tree: one per Python version and platform unless the user names one."""
    platform = sysconfig.get_platform().replace("-", "_")
    default = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}-{platform}"
    return (ROOT / os.environ.get("MYDIST_BUILD_DIR", str(default))).resolve()


def torch_dir() -> Path:
    """Where the torch to compile against lives; exits with what to do when there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"mydist: building needs torch, but {sys.executable} has none. Install it first "
            "(for example `pip install torch==2.13.0`) and build without isolation, so that the "
            "build sees it: `pip install --no-build-isolation .`"
        )
    return Path(spec.origin).parent


def tool(name: str, package: str) -> str:
    """Path of a build tool; exits naming the Debian package when it is missing."""
    path = shutil.which(name)
    if path is None:
        raise SystemExit(
            f"mydist: building needs '{name}', which is not on PATH. "
            f"Install it (Debian: apt-get install {package})."
        )
    return path


class CMakeBuild(build_ext):
    """Compiles libmydist, its plugins and the extension, and puts them into the package."""

    def run(self) -> None:
        """Configure, build and install into build_lib, or into the tree for editable installs."""
        cmake, tree = tool("cmake", "cmake"), build_dir()
        self.configure(cmake, tree)
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        self.call(cmake, "--build", str(tree), "--target", "mydist_package", "--parallel", jobs)
        package = self.package_root()
        # What an earlier build with other options left behind must not stay importable.
        for folder in ("bin", "lib"):
            shutil.rmtree(package / folder, ignore_errors=True)
        for stale in [file for name in BINDINGS for file in package.glob(f"{name}.*.so")]:
            stale.unlink()
        self.call(cmake, "--install", str(tree), "--prefix", str(package))

    def configure(self, cmake: str, tree: Path) -> None:
        """Run the configure step, from scratch when Python, torch or the options changed."""
        arguments = [
            *("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja', 'ninja-build')}"),
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DMYDIST_BUILD_TORCH=ON",
        ]
        cmake_args = shlex.split(os.environ.get("CMAKE_ARGS", ""))
        if not any(argument.startswith("-DMYDIST_BUILD_TESTS") for argument in cmake_args):
            arguments.append("-DMYDIST_BUILD_TESTS=OFF")
        for backend in BACKENDS:
            name = f"MYDIST_WITH_{backend}"
            arguments.append(f"-D{name}={os.environ.get(name, 'AUTO')}")
        arguments += cmake_args

        fingerprint = "\n".join([*arguments, str(torch_dir()), ""])
        record = tree / "configured_with.txt"
        if not record.is_file() or record.read_text() != fingerprint:
            self.forget_configuration(tree)
        tree.mkdir(parents=True, exist_ok=True)
        self.call(cmake, "-S", str(ROOT), "-B", str(tree), *arguments)
        record.write_text(fingerprint)

    @staticmethod
    def forget_configuration(tree: Path) -> None:
        """Configure afresh next time. Compiled files stay, as Ninja knows their flags."""
        (tree / "CMakeCache.txt").unlink(missing_ok=True)
        for compilers in tree.glob("CMakeFiles/[0-9]*"):
            shutil.rmtree(compilers)

    def package_root(self) -> Path:
        """The folder of the package that is being built: the source tree when editable."""
        if self.inplace or getattr(self, "editable_mode", False):
            return ROOT / "python" / "mydist"
        return Path(self.build_lib).resolve() / "mydist"

    @staticmethod
    def call(*command: str) -> None:
        """Run a command, showing its output; exits naming it when it fails."""
        print("+", shlex.join(command), flush=True)
        status = subprocess.run(command, check=False).returncode
        if status != 0:
            raise SystemExit(f"mydist: the build stopped, exit code {status} of: {command[0]}")

    # CMake installs the files itself, so setuptools has nothing to copy, list or map.
    def get_outputs(self) -> list[str]:
        """No output that setuptools has to handle."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """No output that setuptools has to handle."""
        return {}

    def get_source_files(self) -> list[str]:
        """The C++ sources reach a source archive through MANIFEST.in."""
        return []


def packages() -> list[str]:
    """mydist from python/, and launcher/ under the name mydist.launcher."""
    launcher = [f"mydist.launcher.{name}" for name in find_packages(str(ROOT / "launcher"))]
    return [*find_packages(str(ROOT / "python")), "mydist.launcher", *launcher]


setup(
    # Here and not in pyproject.toml, where old and new setuptools want different spellings.
    license="Apache-2.0",
    packages=packages(),
    py_modules=["mydist_autoload"],
    package_dir={"": "python", "mydist": "python/mydist", "mydist.launcher": "launcher"},
    package_data={
        "mydist": [
            "py.typed",
            "*.pyi",
            "bench/*.cc",
            "bench/*.h",
            "horovod/path/horovod/*.py",
        ],
        "mydist.launcher": ["py.typed"],
    },
    ext_modules=[Extension("mydist._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
