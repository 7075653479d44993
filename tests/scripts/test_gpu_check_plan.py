"""The plan of the GPU check: which steps there are, what they run, and what they need."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.gpu_check.carried import Carried
from scripts.gpu_check.plan import BENCHMARKS, OTHER_LAYOUTS, SHARED_OVER_NCCL, Scene, plan
from scripts.gpu_check.steps import FAILED, Results, Step, choose, run_steps

ROOT = Path(__file__).resolve().parents[2]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def steps_of(
    folder: Path, has_gpu: bool = True, has_pytest: bool = True, commit: str = ""
) -> dict[str, Step]:
    carried = Carried(folder / "root", folder / "site")
    scene = Scene(carried, folder / "tree", folder / "logs", has_gpu, has_pytest, commit)
    return {step.name: step for step in plan(scene)}


def test_an_nccl_that_was_brought_is_the_one_that_is_used(tmp_path: Path) -> None:
    def nccl_of_python() -> str | None:
        return steps_of(tmp_path)["G7, NCCL that shares"].environment.get("MYDIST_NCCL_LIBRARY")

    assert nccl_of_python() is None
    library = tmp_path / "site" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_text("library")
    assert nccl_of_python() == str(library)


def test_every_row_has_a_step_and_figures_come_first(tmp_path: Path) -> None:
    from benchmarks.targets import GPU_TARGETS

    assert {target.row for target in GPU_TARGETS} == set(BENCHMARKS)
    steps = steps_of(tmp_path)
    names = list(steps)
    base = [name for name in names if not name.startswith("configure, ")]
    assert base[:4] == ["configure", "build", "install", "G1, pack and scale and cast"]
    figures = [f"benchmark {row}" for row in BENCHMARKS]
    figures += [f"G7, {name}" for name in SHARED_OVER_NCCL]
    last_figure = max(names.index(name) for name in figures)
    assert last_figure < names.index("Python API on the GPU")
    assert last_figure < names.index("compute-sanitizer memcheck, test_gpu")
    assert all(step.limit_s <= 90 for step in steps.values() if step.needs_gpu)


def test_without_pytest_its_steps_are_not_run(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, has_pytest=False)
    assert "pytest" in steps["G7, NCCL between hosts"].obstacle
    assert "pytest" in steps["Python API on the GPU"].obstacle
    assert not steps["benchmark G4"].obstacle


def test_without_googletest_all_else_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "-DMYDIST_BUILD_TESTS=ON" in steps_of(tmp_path)["configure"].command
    monkeypatch.setattr(Carried, "gtest", lambda self: None)
    steps = steps_of(tmp_path)
    assert "-DMYDIST_BUILD_TESTS=OFF" in steps["configure"].command
    assert "-DMYDIST_BUILD_BENCHMARKS=ON" in steps["configure"].command
    assert "bench_convert" in steps["build"].command
    of_tests = ("build of the tests on the GPU", "build of the tests of NCCL", "test_gpu")
    for name in (*of_tests, "test_gpu_ipc", "compute-sanitizer memcheck, test_gpu"):
        assert "GoogleTest" in steps[name].obstacle


def test_every_way_to_configure_asks_for_less(tmp_path: Path) -> None:
    """Where what was brought is broken, as a Gloo without its headers is."""
    library = tmp_path / "root/usr/lib/libgloo.so.0"
    mpirun = tmp_path / "root/usr/bin/mpirun"
    for path in (library, mpirun):
        path.parent.mkdir(parents=True)
        path.write_text("")
    steps = list(steps_of(tmp_path).values())
    before = ""
    for step, mpi, tests in zip(steps, ("ON", "AUTO", "AUTO"), ("ON", "ON", "OFF"), strict=False):
        assert step.instead_of == before
        before = step.name
        for name in ("WITH_MPI", "WITH_GLOO"):
            assert f"-DMYDIST_{name}={mpi}" in step.command
        assert f"-DMYDIST_BUILD_TESTS={tests}" in step.command
        assert any(word.startswith("-DGTest_DIR") for word in step.command) == (tests == "ON")
    assert steps[3].name == "build"


def test_with_nothing_brought_there_is_one_way_less(tmp_path: Path) -> None:
    ways = [name for name in steps_of(tmp_path) if name.startswith("configure")]
    assert ways == ["configure", "configure, without tests"]


def test_one_target_that_is_broken_does_not_stop_the_others(tmp_path: Path) -> None:
    steps = steps_of(tmp_path)
    project = """
        cmake_minimum_required(VERSION 3.25)
        project(broken LANGUAGES NONE)
        add_custom_target(mydist_package COMMAND false)
        add_custom_command(OUTPUT late COMMAND sleep 1 && touch late)
        add_custom_target(bench_convert COMMAND touch bench_convert DEPENDS late)
    """
    (tmp_path / "CMakeLists.txt").write_text(project)
    tree = tmp_path / "tree"
    results = Results(tmp_path / "results", tmp_path / "logs", {})
    configure = ["cmake", "-G", "Ninja", "-S", str(tmp_path), "-B", str(tree)]
    parts = [Step("configure", configure, needs_gpu=False), steps["build"], steps["install"]]
    _, built, _ = run_steps(parts, "", results, time.monotonic() + 120)
    assert built.verdict == FAILED
    assert (tree / "bench_convert").exists()


def test_what_was_built_is_installed_also_where_a_backend_was_not(tmp_path: Path) -> None:
    made, package = tmp_path / "tree/mydist", tmp_path / "tree/package/mydist"
    for path in (made / "lib", package):
        path.mkdir(parents=True)
    for name in ("_C.abi3.so", "lib/libmydist.so", "lib/libmydist_nccl.so"):
        (made / name).write_text(name)
    steps = steps_of(tmp_path)
    results = Results(tmp_path / "results", tmp_path / "logs", {})
    run_steps([steps["install"]], "", results, time.monotonic() + 60)
    assert (package / "_C.abi3.so").read_text() == "_C.abi3.so"
    assert len(list((package / "lib").iterdir())) == 2
    uses = steps["benchmark G4"].uses
    assert uses and all(any(path.parent.glob(path.name)) for path in uses)


def test_only_some_steps_come_with_what_makes_what_they_use(tmp_path: Path) -> None:
    steps = list(steps_of(tmp_path).values())
    names = [step.name for step in choose(steps, "memcheck, test_gpu$")]
    tests = "build of the tests on the GPU"
    assert names[0] == "configure" and "build" not in names
    assert names[-2:] == [tests, "compute-sanitizer memcheck, test_gpu"]
    names = [step.name for step in choose(steps, "benchmark G4")]
    assert names[-3:] == ["build", "install", "benchmark G4"]


def test_programs_that_were_not_built_are_not_run(tmp_path: Path) -> None:
    for name, step in steps_of(tmp_path).items():
        if not name.startswith("configure"):
            assert step.uses, name


def test_hosts_that_are_pretended_meet_over_loopback(tmp_path: Path) -> None:
    """It may be the only interface, which ranks of several hosts would refuse."""
    environment = steps_of(tmp_path)["2 hosts x 1"].environment
    assert environment["MYDIST_NETWORK_INTERFACES"] == "lo"


def test_plugins_of_another_pytest_stay_out(tmp_path: Path) -> None:
    environment = steps_of(tmp_path)["Python API on the GPU"].environment
    assert environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"


def test_a_log_says_which_test_ran(tmp_path: Path) -> None:
    """Of one that crashes or hangs there is nothing else."""
    assert not [s for s in steps_of(tmp_path).values() if "--gtest_brief=1" in s.command]


def test_figures_have_the_commit(tmp_path: Path) -> None:
    command = list(steps_of(tmp_path, commit="abc")["benchmark G4"].command)
    assert command[command.index("--commit") + 1] == "abc"
    assert "--commit" not in steps_of(tmp_path)["benchmark G4"].command


def test_make_hands_the_commit_on(tmp_path: Path) -> None:
    stub = tmp_path / "python"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    environment = {**os.environ, "MYDIST_PYTHON": str(stub)}
    told = subprocess.run(
        ["make", "--silent", "gpu-check", "COMMIT=1a2b"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    assert told[-2:] == ["--commit", "1a2b"]


@pytest.mark.deep
def test_the_layouts_are_those_of_the_tests() -> None:
    """One step for each, which runs the tests of that one."""
    code = "import multiproc, gpu.test_two_ranks as tests; print(*tests.LAYOUTS, sep='\\n')"
    layouts = subprocess.run(
        python(code), cwd=ROOT / "tests", capture_output=True, text=True, timeout=120, check=True
    ).stdout.splitlines()
    assert sorted((*SHARED_OVER_NCCL, *OTHER_LAYOUTS)) == sorted(layouts)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "tests/gpu/test_two_ranks.py",
    ]
    counts = []
    for layout in layouts:
        listed = subprocess.run(
            [*command, f"--layout={layout}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        tests = [line for line in listed.splitlines() if "::" in line]
        assert tests and all(f"[{layout}" in line for line in tests)
        counts.append(len(tests))
    assert len(set(counts)) == 1
