"""The GPU check without a GPU: what is run and what not, what is told of it, which files come."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from scripts.gpu_check.__main__ import copy_package
from scripts.gpu_check.carried import Carried
from scripts.gpu_check.facts import first_line
from scripts.gpu_check.plan import BENCHMARKS, OTHER_LAYOUTS, SHARED_OVER_NCCL, Scene, plan
from scripts.gpu_check.steps import (
    FAILED,
    MISSED,
    NOT_MEASURED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    Outcome,
    Reading,
    Results,
    Step,
    format_table,
    is_fine,
    run_steps,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results", tmp_path / "logs", {"GPU": "none"})


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def run(
    results: Results, steps: list[Step], no_gpu: str = "", seconds: float = 60
) -> list[Outcome]:
    return run_steps(steps, no_gpu, results, time.monotonic() + seconds)


def test_what_needs_a_gpu_is_skipped_with_the_reason(results: Results) -> None:
    steps = [
        Step("build", python("print('built')"), needs_gpu=False),
        Step("tests", python("raise SystemExit('must not run')")),
    ]
    built, skipped = run(results, steps, no_gpu="no NVIDIA driver")
    assert (built.verdict, skipped.verdict) == (PASSED, SKIPPED)
    assert skipped.detail == "no NVIDIA driver"
    assert is_fine([built, skipped])


def test_a_failure_is_told_and_the_rest_goes_on(results: Results, tmp_path: Path) -> None:
    no_program = tmp_path / "no_program"
    no_program.write_text("neither a program nor executable")
    steps = [
        Step("tests", python("print('lost'); raise SystemExit(3)")),
        Step("more", python("print('42 things')"), reads=lambda output: Reading(output.strip())),
        Step("gone", ["/nowhere/compute-sanitizer"]),
        Step("denied", [str(no_program)]),
        Step("lacks", python(""), obstacle="GoogleTest was neither found nor brought"),
    ]
    failed, passed, gone, denied, lacks = run(results, steps)
    assert (failed.verdict, failed.detail) == (FAILED, "exit code 3; see 00.log")
    assert failed.tail == "lost\n"
    assert (results.logs / "00.log").read_text() == "lost\n"
    assert (passed.verdict, passed.detail, passed.tail) == (PASSED, "42 things", "")
    assert gone.verdict == NOT_RUN and "compute-sanitizer" in gone.detail
    assert denied.verdict == NOT_RUN and "Permission denied" in denied.detail
    assert (lacks.verdict, lacks.detail) == (NOT_RUN, "GoogleTest was neither found nor brought")


@pytest.mark.parametrize(
    ("verdict", "fine"),
    [
        (PASSED, True),
        (SKIPPED, True),
        (MISSED, True),
        (FAILED, False),
        (NOT_RUN, False),
        (NOT_MEASURED, False),
    ],
)
def test_all_has_to_be_run_and_right(verdict: str, fine: bool) -> None:
    outcomes = [Outcome("one", PASSED), Outcome("other", verdict)]
    assert is_fine(outcomes) == fine


@pytest.mark.parametrize("command", [python("raise SystemExit(1)"), ["/nowhere/cmake"]])
def test_without_a_build_there_is_nothing_to_run(results: Results, command: list[str]) -> None:
    steps = [
        Step("build", command, is_base=True),
        Step("install", python(""), is_base=True),
        Step("tests", python("")),
    ]
    built, *others = run(results, steps)
    for other in others:
        assert (other.verdict, other.detail) == (NOT_RUN, f"build: {built.verdict}")


def test_time_that_runs_out(results: Results) -> None:
    endless = "import sys, threading; print('begun', flush=True); threading.Event().wait()"
    ended, late = run(
        results, [Step("endless", python(endless)), Step("late", python(""))], seconds=2
    )
    assert (ended.verdict, ended.detail) == (FAILED, "not over in 2 s; see 00.log")
    assert ended.tail.startswith("begun\n")
    assert (late.verdict, late.detail) == (NOT_RUN, "time ran out")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("ending", ["one.wait()", "pass"])
def test_nothing_that_a_step_has_started_is_left(
    results: Results, tmp_path: Path, ending: str
) -> None:
    """Whether the step outlasts its limit, or ends and leaves it behind."""
    file = tmp_path / "pid"
    wait = "import signal, threading; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    wait += "; threading.Event().wait()"
    code = f"import subprocess, sys; one = subprocess.Popen([sys.executable, '-c', {wait!r}])\n"
    code += f"open({str(file)!r}, 'w').write(str(one.pid)); {ending}"
    steps = [Step("first", python(code), limit_s=1.5), Step("next", python(""))]
    start = time.monotonic()
    first, after = run(results, steps)
    assert time.monotonic() - start < 30
    assert first.verdict == (PASSED if ending == "pass" else FAILED)
    assert after.verdict == PASSED
    assert not is_running(int(file.read_text()))


def test_a_failure_says_what_could_be_read(results: Results, tmp_path: Path) -> None:
    def missing(output: str) -> Reading:
        return Reading((tmp_path / "missing.xml").read_text())

    words = Reading("1 passed, 1 failed", FAILED)
    steps = [
        Step("counted", python("raise SystemExit(1)"), reads=lambda _: words),
        Step("gone", python("raise SystemExit(1)"), reads=missing),
        Step("empty", python(""), reads=missing),
        Step("read", python(""), reads=lambda _: words),
    ]
    counted, gone, empty, read = run(results, steps)
    assert counted.detail == "exit code 1; 1 passed, 1 failed; see 00.log"
    assert gone.detail == "exit code 1; see 01.log"
    assert empty.verdict == FAILED and "missing.xml" in empty.detail
    assert (read.verdict, read.detail) == (FAILED, "1 passed, 1 failed; see 03.log")


def test_results_are_whole_after_every_step(results: Results) -> None:
    (results.folder / "logs.tar.gz").write_bytes(b"of an earlier run")
    look = f"import os; print(sorted(os.listdir({str(results.folder)!r})))"
    steps = [Step("first", python("print('one')")), Step("second", python(look))]
    outcomes = run(results, steps)
    three = ["logs.tar.gz", "results.json", "summary.txt"]
    assert (results.logs / "01.log").read_text() == f"{three}\n"
    assert sorted(path.name for path in results.folder.iterdir()) == three
    document = json.loads((results.folder / "results.json").read_text())
    assert document["facts"] == {"GPU": "none"}
    assert [step["name"] for step in document["steps"]] == ["first", "second"]
    table = (results.folder / "summary.txt").read_text()
    assert table == format_table(results.facts, outcomes) + "\n"
    with tarfile.open(results.folder / "logs.tar.gz") as archive:
        assert {"logs/00.log", "logs/01.log"} <= set(archive.getnames())


def test_logs_of_an_earlier_run_are_gone(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "G4.json").write_text("{}")
    Results(tmp_path / "results", logs, {})
    assert not list(logs.iterdir())


def test_what_a_program_says_of_itself_is_a_line() -> None:
    assert first_line(python("print('release 13.0, V13'); print('more')")) == "release 13.0, V13"
    assert first_line(python("print('a b c')"), r"b.*") == "b c"
    assert first_line(python("print('x'); raise SystemExit(1)")) == ""
    assert first_line(["/nowhere/nvcc"]) == ""


def test_the_help_names_what_has_to_be_brought() -> None:
    command = [sys.executable, "-m", "scripts.gpu_check", "--help"]
    told = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    for name in (
        "python3-dev",
        "libgtest-dev",
        "libgloo-dev",
        "openmpi-bin",
        "nvidia-nccl-cu13",
        "--minutes",
    ):
        assert name in told


def test_the_package_is_put_together_as_installed(tmp_path: Path) -> None:
    copy_package(ROOT, tmp_path)
    assert (tmp_path / "mydist" / "optimizer.py").exists()
    assert (tmp_path / "mydist" / "launcher" / "check_build.py").exists()
    assert not list(tmp_path.rglob("*.so"))


def steps_of(folder: Path, has_gpu: bool = True, has_pytest: bool = True) -> dict[str, Step]:
    carried = Carried(folder / "root", folder / "site")
    scene = Scene(carried, folder / "tree", folder / "logs", has_gpu, has_pytest)
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
    assert names[:4] == ["configure", "build", "install", "G1, pack and scale and cast"]
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
    assert "test_gpu" not in steps["build"].command
    for name in ("test_gpu", "test_gpu_ipc", "compute-sanitizer memcheck, test_gpu"):
        assert "GoogleTest" in steps[name].obstacle


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
