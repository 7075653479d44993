"""The steps of the check, in order: where time runs out, what has no figure is left out."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from .carried import Carried
from .reports import count_tests, read_packing, read_sanitizer, read_verdicts
from .steps import Step

ROOT = Path(__file__).resolve().parents[2]
# Rows of benchmarks/targets.py, with what a slow machine may take in seconds.
BENCHMARKS = {"G4": 40, "G5": 75, "G6": 60, "G2": 45}
SHARED = "tests/gpu/test_two_ranks.py"
# Its layouts. Over NCCL on one host, or for NCCL on two: row G7.
SHARED_OVER_NCCL = ("NCCL between hosts", "NCCL that shares")
OTHER_LAYOUTS = (
    "2 hosts x 1",
    "2 hosts x 2",
    "GPU to GPU",
    "host memory",
    "2 hosts x 1, MPI",
    "2 hosts x 2, MPI",
)


@dataclass(frozen=True)
class Scene:
    """Where things are, and what is there."""

    carried: Carried
    tree: Path  # Built in.
    logs: Path  # Reports go there, too.
    has_gpu: bool
    has_pytest: bool

    @property
    def package(self) -> Path:
        """On Python's path while the tests in Python run."""
        return self.tree / "package"

    def running(self) -> dict[str, str]:
        """The environment of what was built."""
        variables = self.carried.environment()
        variables["PYTHONPATH"] = f"{self.package}{os.pathsep}{variables['PYTHONPATH']}"
        # There may be no network but the loopback interface, which NCCL leaves out by itself.
        variables |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        if nccl := self.carried.nccl():  # torch has loaded its own, and would be asked first.
            variables["MYDIST_NCCL_LIBRARY"] = str(nccl)
        return variables


def plan(scene: Scene) -> list[Step]:
    """All steps."""
    running = scene.running()
    return [
        *_base(scene),
        Step(
            "G1, pack and scale and cast",
            [str(scene.tree / "benchmarks" / "bench_convert")],
            reads=read_packing,
            environment=running,
            limit_s=30,
        ),
        *(_cpp_tests(scene, name, 60) for name in ("test_gpu", "test_gpu_ipc")),
        *(_benchmark(scene, row, seconds) for row, seconds in BENCHMARKS.items()),
        *(_layout(scene, name, "G7, ") for name in SHARED_OVER_NCCL),
        _python_tests(
            scene, "Python API on the GPU", "alone", 90, "tests/gpu", f"--ignore={SHARED}"
        ),
        *(_layout(scene, name) for name in OTHER_LAYOUTS),
        *_nccl_tests(scene),
        *_sanitizers(scene),
    ]


def _base(scene: Scene) -> list[Step]:
    root, gtest = scene.carried.root, scene.carried.gtest()
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(scene.tree)]
    configure += ["-DMYDIST_WITH_CUDA=ON", "-DMYDIST_BUILD_BENCHMARKS=ON"]
    configure.append(f"-DPython_EXECUTABLE={sys.executable}")
    configure.append(f"-DCMAKE_PREFIX_PATH={root / 'usr'}")
    configure.append(f"-DMYDIST_BUILD_TESTS={'ON' if gtest else 'OFF'}")
    configure += [f"-DGTest_DIR={gtest}"] if gtest else []
    configure += ["-DCMAKE_CUDA_ARCHITECTURES=native"] if scene.has_gpu else []
    # What was brought and is not found would be left out without a word.
    configure += ["-DMYDIST_WITH_MPI=ON"] if scene.carried.has_mpi() else []
    configure += ["-DMYDIST_WITH_GLOO=ON"] if scene.carried.has_gloo() else []
    targets = ["mydist_package", "bench_convert"]
    targets += ["test_gpu", "test_gpu_ipc"] if gtest else []
    install = ["cmake", "--install", str(scene.tree), "--prefix", str(scene.package / "mydist")]
    environment = scene.carried.environment()
    commands = {"configure": configure, "build": _make(scene, targets), "install": install}
    return [
        Step(name, command, needs_gpu=False, is_base=True, environment=environment, limit_s=480)
        for name, command in commands.items()
    ]


def _make(scene: Scene, targets: list[str]) -> list[str]:
    parallel = str(os.cpu_count() or 2)
    return ["cmake", "--build", str(scene.tree), "--parallel", parallel, "--target", *targets]


def _cpp_tests(scene: Scene, name: str, seconds: float, needs_gpu: bool = True) -> Step:
    report = scene.logs / f"{name}.xml"
    return Step(
        name,
        [str(scene.tree / "tests" / name), "--gtest_brief=1", f"--gtest_output=xml:{report}"],
        needs_gpu=needs_gpu,
        obstacle=_obstacle_of_tests(scene),
        reads=lambda _: count_tests(report),
        environment=scene.running(),
        limit_s=seconds,
    )


def _obstacle_of_tests(scene: Scene) -> str:
    return "" if scene.carried.gtest() else "GoogleTest was neither found nor brought"


def _benchmark(scene: Scene, row: str, seconds: float) -> Step:
    path = scene.logs / f"{row}.json"
    limit = ["--minutes", f"{seconds / 60:.2f}", "--json", str(path)]
    return Step(
        f"benchmark {row}",
        [sys.executable, "-m", "benchmarks", "--gpu", "--only", row, *limit],
        reads=lambda _: read_verdicts(path),
        environment=scene.running(),
        limit_s=seconds + 15,
    )


def _python_tests(scene: Scene, name: str, report: str, seconds: float, *arguments: str) -> Step:
    path = scene.logs / f"{report}.xml"
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return Step(
        name,
        [*pytest, f"--junitxml={path}", *arguments],
        obstacle="" if scene.has_pytest else "pytest was neither found nor brought",
        reads=lambda _: count_tests(path),
        environment=scene.running(),
        limit_s=seconds,
    )


def _layout(scene: Scene, name: str, row: str = "") -> Step:
    """A step of its own: one that hangs costs no others."""
    report = "".join(letter for letter in name if letter.isalnum())
    return _python_tests(scene, f"{row}{name}", report, 75, SHARED, f"--layout={name}")


def _nccl_tests(scene: Scene) -> list[Step]:
    """How NCCL is found, and the plugin opened, on a machine that has a driver."""
    names = ("test_nccl_library", "test_nccl_plugin")
    build = Step(
        "build of the tests of NCCL",
        _make(scene, list(names)),
        needs_gpu=False,
        obstacle=_obstacle_of_tests(scene),
        environment=scene.carried.environment(),
    )
    return [build, *(_cpp_tests(scene, name, 30, needs_gpu=False) for name in names)]


def _sanitizers(scene: Scene) -> list[Step]:
    """The kernels' tests once more, slowly."""
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    # A call that fails is no error here: tests have some fail.
    checked = [program, "--error-exitcode=9", "--report-api-errors", "no"]
    checked += ["--target-processes", "all", "--tool"]
    # Checked memory is slow: the one scene of gigabytes is left to the tests.
    fast = ["--gtest_filter=-*Beyond32Bits*", "--gtest_brief=1"]
    return [
        Step(
            f"compute-sanitizer {tool}, {test}",
            [*checked, tool, str(scene.tree / "tests" / test), *fast],
            obstacle=_obstacle_of_tests(scene),
            reads=read_sanitizer,
            environment=scene.running(),
            limit_s=60,
        )
        for tool in ("memcheck", "racecheck", "synccheck")
        for test in ("test_gpu", "test_gpu_ipc")
    ]
