"""The steps of the check, in order: where time runs out, what has no figure is left out."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .carried import Carried
from .reports import count_tests, read_packing, read_sanitizer, read_verdicts
from .steps import Step

ROOT = Path(__file__).resolve().parents[2]
# Rows of benchmarks/targets.py, with what a slow machine may take in seconds.
BENCHMARKS = {"G4": 40, "G5": 75, "G6": 60, "G2": 45}
ON_THE_GPU = ("test_gpu", "test_gpu_ipc")
OF_NCCL = ("test_nccl_library", "test_nccl_plugin")
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
    commit: str = ""  # What the tree is, where git cannot tell.

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
        # As does Gloo, as soon as ranks pretend to be on several hosts.
        variables["MYDIST_NETWORK_INTERFACES"] = "lo"
        variables["TEST_DEEP"] = "1"  # Runs on a GPU are few: each takes all cases.
        if nccl := self.carried.nccl():  # torch has loaded its own, and would be asked first.
            variables["MYDIST_NCCL_LIBRARY"] = str(nccl)
        return variables


def plan(scene: Scene) -> list[Step]:
    """All steps."""
    packing = scene.tree / "benchmarks" / "bench_convert"
    return [
        *_configure(scene),
        *_build(scene, packing),
        Step(
            "G1, pack and scale and cast",
            [str(packing)],
            uses=[packing],
            reads=read_packing,
            environment=scene.running(),
            limit_s=30,
        ),
        _build_of_tests(scene, "build of the tests on the GPU", ON_THE_GPU),
        *(_cpp_tests(scene, name, 60) for name in ON_THE_GPU),
        *(_benchmark(scene, row, seconds) for row, seconds in BENCHMARKS.items()),
        *(_layout(scene, name, "G7, ") for name in SHARED_OVER_NCCL),
        _python_tests(
            scene, "Python API on the GPU", "alone", 90, "tests/gpu", f"--ignore={SHARED}"
        ),
        *(_layout(scene, name) for name in OTHER_LAYOUTS),
        *_nccl_tests(scene),
        *_sanitizers(scene),
    ]


def _configure(scene: Scene) -> list[Step]:
    """Each but the first for where the one before has failed: what was brought may be broken."""
    root, gtest = scene.carried.root, scene.carried.gtest()
    found = ["-DMYDIST_WITH_MPI=AUTO", "-DMYDIST_WITH_GLOO=AUTO"]
    # What was brought and is not found would be left out without a word.
    brought = [
        f"-DMYDIST_WITH_MPI={'ON' if scene.carried.has_mpi() else 'AUTO'}",
        f"-DMYDIST_WITH_GLOO={'ON' if scene.carried.has_gloo() else 'AUTO'}",
    ]
    tests = ["-DMYDIST_BUILD_TESTS=ON", f"-DGTest_DIR={gtest}"] if gtest else []
    no_tests = ["-DMYDIST_BUILD_TESTS=OFF"]
    attempts = {
        "configure": [*brought, *(tests or no_tests)],
        "configure, with what is found": [*found, *(tests or no_tests)],
        "configure, without tests": [*found, *no_tests],
    }
    always = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(scene.tree)]
    always += ["-DMYDIST_WITH_CUDA=ON", "-DMYDIST_BUILD_BENCHMARKS=ON"]
    always.append(f"-DPython_EXECUTABLE={sys.executable}")
    always.append(f"-DCMAKE_PREFIX_PATH={root / 'usr'}")
    always += ["-DCMAKE_CUDA_ARCHITECTURES=native"] if scene.has_gpu else []
    steps: list[Step] = []
    for name, options in attempts.items():
        step = Step(
            name,
            [*always, *options],
            needs_gpu=False,
            makes=[scene.tree / "build.ninja"],
            instead_of=steps[-1].name if steps else "",
            environment=scene.carried.environment(),
            limit_s=120,
        )
        if not steps or step.command != steps[-1].command:
            steps.append(step)
    return steps


def _build(scene: Scene, packing: Path) -> list[Step]:
    """The package, put where Python finds it, and what is needed for row G1."""
    made, package = scene.tree / "mydist", scene.package / "mydist"
    needed = [made / "lib" / "libmydist.so", made / "lib" / "libmydist_nccl.so", made / "_C.*.so"]
    others = [made / "lib" / "libmydist_mpi.so", made / "lib" / "libmydist_gloo.so"]
    build = _make(scene, "build", ["mydist_package", packing.name], [*needed, *others, packing])
    install = Step(
        "install",
        ["cp", "-a", f"{made}/.", str(package)],  # CMake would stop at a backend that is not there.
        needs_gpu=False,
        makes=[package / "lib", *_package_of(scene)],
        uses=needed,
    )
    return [build, install]


def _package_of(scene: Scene) -> list[Path]:
    """What steps in Python use."""
    return [scene.package / "mydist" / "_C.*.so"]


def _build_of_tests(scene: Scene, name: str, tests: tuple[str, ...]) -> Step:
    programs = [scene.tree / "tests" / test for test in tests]
    return _make(scene, name, tests, programs, _obstacle_of_tests(scene))


def _make(
    scene: Scene, name: str, targets: Sequence[str], makes: list[Path], obstacle: str = ""
) -> Step:
    parallel = str(os.cpu_count() or 2)
    command = ["cmake", "--build", str(scene.tree), "--parallel", parallel, "--target", *targets]
    return Step(
        name,
        [*command, "--", "-k", "0"],  # What does not need the one that fails is built.
        needs_gpu=False,
        makes=makes,
        uses=[scene.tree / "build.ninja"],
        obstacle=obstacle,
        environment=scene.carried.environment(),
        limit_s=480,
    )


def _cpp_tests(scene: Scene, name: str, seconds: float, needs_gpu: bool = True) -> Step:
    program, report = scene.tree / "tests" / name, scene.logs / f"{name}.xml"
    return Step(
        name,
        [str(program), f"--gtest_output=xml:{report}"],
        needs_gpu=needs_gpu,
        uses=[program],
        obstacle=_obstacle_of_tests(scene),
        reads=lambda _: count_tests(report),
        environment=scene.running(),
        limit_s=seconds,
    )


def _obstacle_of_tests(scene: Scene) -> str:
    return "" if scene.carried.gtest() else "GoogleTest was neither found nor brought"


def _benchmark(scene: Scene, row: str, seconds: float) -> Step:
    path = scene.logs / f"{row}.json"
    options = ["--minutes", f"{seconds / 60:.2f}", "--json", str(path)]
    options += ["--commit", scene.commit] if scene.commit else []
    return Step(
        f"benchmark {row}",
        [sys.executable, "-m", "benchmarks", "--gpu", "--only", row, *options],
        uses=_package_of(scene),
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
        uses=_package_of(scene),
        obstacle="" if scene.has_pytest else "pytest was neither found nor brought",
        reads=lambda _: count_tests(path),
        # What is installed besides may have plugins for another pytest.
        environment={**scene.running(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        limit_s=seconds,
    )


def _layout(scene: Scene, name: str, row: str = "") -> Step:
    """A step of its own: one that hangs costs no others."""
    report = "".join(letter for letter in name if letter.isalnum())
    return _python_tests(scene, f"{row}{name}", report, 75, SHARED, f"--layout={name}")


def _nccl_tests(scene: Scene) -> list[Step]:
    """How NCCL is found, and the plugin opened, on a machine that has a driver."""
    build = _build_of_tests(scene, "build of the tests of NCCL", OF_NCCL)
    return [build, *(_cpp_tests(scene, name, 30, needs_gpu=False) for name in OF_NCCL)]


def _sanitizers(scene: Scene) -> list[Step]:
    """The kernels' tests once more, slowly."""
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    # A call that fails is no error here: tests have some fail.
    checked = [program, "--error-exitcode=9", "--report-api-errors", "no"]
    checked += ["--target-processes", "all", "--tool"]
    # Checked memory is slow: the one scene of gigabytes is left to the tests.
    fast = "--gtest_filter=-*Beyond32Bits*"
    return [
        Step(
            f"compute-sanitizer {tool}, {test}",
            [*checked, tool, str(scene.tree / "tests" / test), fast],
            uses=[scene.tree / "tests" / test],
            obstacle=_obstacle_of_tests(scene),
            reads=read_sanitizer,
            environment=scene.running(),
            limit_s=60,
        )
        for tool in ("memcheck", "racecheck", "synccheck")
        for test in ON_THE_GPU
    ]
