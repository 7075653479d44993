"""The GPU check without a GPU: what is run and what not, what is told of it, which files come."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from deep import deep

from scripts.gpu_check import __main__ as program
from scripts.gpu_check import facts
from scripts.gpu_check import steps as steps_module
from scripts.gpu_check.facts import first_line
from scripts.gpu_check.plan import Scene
from scripts.gpu_check.reports import read_sanitizer
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


def shell(code: str) -> list[str]:
    """Begins at once, also where Python would take its time."""
    return ["sh", "-c", code]


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


@pytest.mark.parametrize("command", [shell("exit 1"), ["/nowhere/cmake"]])
def test_what_was_not_built_is_not_run_and_all_else_is(
    results: Results, tmp_path: Path, command: list[str]
) -> None:
    """Nor is what an earlier build has left."""
    one, other = tmp_path / "one", tmp_path / "other"
    (tmp_path / "lib").mkdir()
    for left in (one, tmp_path / "lib" / "_C.old.so"):
        left.write_text("of an earlier build")
    steps = [
        Step("build of one", command, makes=[one, tmp_path / "lib"]),
        Step("build of the other", shell(f"touch {other}; exit 1"), makes=[other]),
        Step("one", python(""), uses=[other, one]),
        Step("library", python(""), uses=[tmp_path / "lib" / "_C.*.so"]),
        Step("other", python(""), uses=[tmp_path / "oth*"]),
    ]
    *_, first, library, second = run(results, steps)
    assert (first.verdict, first.detail) == (NOT_RUN, "not there: one")
    assert (library.verdict, library.detail) == (NOT_RUN, "not there: _C.*.so")
    assert second.verdict == PASSED


def test_a_second_way_is_tried_where_the_first_has_failed(results: Results, tmp_path: Path) -> None:
    made = tmp_path / "build.ninja"
    steps = [
        Step("plain", shell("exit 1"), makes=[made]),
        Step("less", shell(f"touch {made}"), makes=[made], instead_of="plain"),
        Step("least", shell(f"rm {made}"), makes=[made], instead_of="less"),
        Step("build", python(""), uses=[made]),
    ]
    found = [(outcome.name, outcome.verdict) for outcome in run(results, steps)]
    assert found == [("plain", FAILED), ("less", PASSED), ("build", PASSED)]


@pytest.mark.deep
def test_time_that_runs_out(results: Results) -> None:
    reserved = sum(steps_module._ENDINGS.values())
    endless = shell("echo begun; exec sleep 600")
    steps = [Step("limited", endless, limit_s=3), Step("endless", endless), Step("late", endless)]
    limited, ended, late = run(results, steps, seconds=reserved + 15)
    assert (limited.verdict, limited.detail) == (FAILED, "not over in 3 s; see 00.log")
    assert limited.tail.startswith("begun\n")
    assert re.fullmatch(r"not over in [1-9]\d? s; see 01.log", ended.detail)
    assert (late.verdict, late.detail) == (NOT_RUN, "time ran out")


@pytest.mark.deep
def test_also_a_step_that_will_not_end_keeps_within_the_time(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    endings = {signal.SIGINT: 1.0, signal.SIGTERM: 1.0, signal.SIGKILL: 8.0}
    monkeypatch.setattr(steps_module, "_ENDINGS", endings, raising=False)
    stubborn = shell("trap '' INT TERM; echo begun; while :; do sleep 600; done")
    start = time.monotonic()
    (ended,) = run(results, [Step("stubborn", stubborn)], seconds=14)
    assert time.monotonic() - start < 14
    assert ended.verdict == FAILED and ended.tail.startswith("begun\n")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("ending", ["wait", "true"])
def test_nothing_that_a_step_has_started_is_left(
    results: Results, tmp_path: Path, ending: str
) -> None:
    """Whether the step outlasts its limit, or ends and leaves it behind."""
    file = tmp_path / "pid"
    code = f"(trap '' INT; sleep 600) & echo $! >{file}; {ending}"
    steps = [Step("first", shell(code), limit_s=4), Step("next", python(""))]
    start = time.monotonic()
    first, after = run(results, steps)
    assert time.monotonic() - start < 30
    assert first.verdict == (PASSED if ending == "true" else FAILED)
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
    found = "echo ===== ERROR SUMMARY: 3 errors; exit 9"
    (checked,) = run(results, [Step("checked", shell(found), reads=read_sanitizer)])
    assert checked.detail == "exit code 9; 3 errors in 1 processes; see 00.log"


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


def test_what_an_earlier_run_has_found_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for number in range(3):
        results = Results(folder, tmp_path / "logs", {"commit": str(number)})
        run(results, [Step("step", shell(f"echo {number}"))])
    for number, place in enumerate([folder / "earlier_1", folder / "earlier_2", folder]):
        document = json.loads((place / "results.json").read_text())
        assert document["facts"] == {"commit": str(number)}
        assert (place / "summary.txt").exists()
        with tarfile.open(place / "logs.tar.gz") as archive:
            log = archive.extractfile("logs/00.log")
            assert log is not None and log.read() == f"{number}\n".encode()


def test_without_nvidia_smi_torch_tells_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(facts.sys, "executable", str(fake))
    assert facts.find_gpu() == ("", "no NVIDIA driver: nvidia-smi is not there")
    fake.write_text("#!/bin/sh\necho NVIDIA H100\n")
    assert facts.find_gpu() == ("NVIDIA H100", "")


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


def test_no_other_package_of_that_name_comes_before(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "__init__.py").write_text("")
    command = [sys.executable, "-m", "scripts.gpu_check", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=True)


@pytest.mark.parametrize(
    ("code", "file", "expected"), [("0", "", 0), ("1", "", 1), deep("0", "a.whl", 1)]
)
def test_the_command_from_end_to_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: str,
    file: str,
    expected: int,
) -> None:
    """But for the steps: the real ones take minutes."""
    scenes: list[Scene] = []

    def stub_plan(scene: Scene) -> list[Step]:
        scenes.append(scene)
        return [
            Step("build", shell("echo built"), needs_gpu=False),
            Step("tests", shell(f"exit {code}"), needs_gpu=False),
            Step("figures", shell("exit 1")),
        ]

    monkeypatch.setattr(program, "plan", stub_plan)
    monkeypatch.setattr(program, "find_gpu", lambda: ("", "none here"))
    (tmp_path / "files").mkdir()
    if file:
        (tmp_path / "files" / file).write_text("no wheel")
    folder, tree = tmp_path / "results", tmp_path / "tree"
    arguments = [str(folder), "--tree", str(tree), "--files", str(tmp_path / "files")]
    assert program.main([*arguments, "--commit", "abc", "--minutes", "2"]) == expected
    assert scenes[0].commit == "abc" and not scenes[0].has_gpu
    assert (scenes[0].package / "mydist" / "optim" / "optimizer.py").exists()
    document = json.loads((folder / "results.json").read_text())
    verdicts = {step["name"]: step["verdict"] for step in document["steps"]}
    tests = PASSED if code == "0" else FAILED
    assert verdicts == {"build": PASSED, "tests": tests, "figures": SKIPPED}
    assert document["facts"]["commit"] == "abc"
    assert document["facts"]["brought"].startswith(f"{file} (broken: " if file else "nothing")
    assert capsys.readouterr().out.endswith((folder / "summary.txt").read_text())
    assert program.main([*arguments, "--only", "no step has it"]) == 1


def test_the_package_is_put_together_as_installed(tmp_path: Path) -> None:
    program.copy_package(ROOT, tmp_path)
    assert (tmp_path / "mydist" / "optim" / "optimizer.py").exists()
    assert (tmp_path / "mydist" / "launcher" / "check_build.py").exists()
    assert not list(tmp_path.rglob("*.so"))
