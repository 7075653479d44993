"""Flight recorders of jobs that stall, fail or are asked, and the verdict on them."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from deep import deep

from multiproc.job import WORKERS, backend_environment, launch, launcher_command
from multiproc.watched_job import watched_job
from mydist.debug.dumps import read_folder
from mydist.debug.verdict import verdict

NP = 3
VICTIM = 1
WARNING_S = 1.0
WORKER = WORKERS / "flight_recorded.py"
LINE_OF_LOSS = 1 + WORKER.read_text().partition('name="loss"')[0].count("\n")
BEHIND = "rank 1 is behind: it has not submitted allreduce 'loss', for which ranks 0, 2 have waited"


def await_verdict(folder: Path, reason: str, begin: str) -> str:
    """The verdict on dumps that all have that reason, once it begins so."""
    end = time.monotonic() + 60
    while True:
        dumps = read_folder(folder)[0] if any(folder.glob("flight_recorder_*")) else []
        text = verdict(dumps) if len(dumps) == NP else "Not all ranks have a dump."
        if text.startswith(begin) and all(dump.reason == reason for dump in dumps):
            return text
        assert time.monotonic() < end, f"not of {reason}, or not {begin!r}: {text}"
        time.sleep(0.02)


@pytest.mark.parametrize("backend", ["local", deep("gloo"), deep("mpi")])
def test_a_stall_and_a_question_while_a_rank_holds_the_gil(backend: str, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    flags = ["--flight-recorder-dir", str(dumps), "--stall-stack"]
    flags += ["--stall-check-warning-time-seconds", str(WARNING_S)]
    worker = (str(WORKER), "late", str(tmp_path), str(VICTIM))
    command = launcher_command(NP, backend, *worker, flags=flags)
    with watched_job(command, backend_environment(backend), tmp_path) as job:
        for rank in range(NP):
            job.row(f"ready{rank}")
        text = await_verdict(dumps, "stall", f"Verdict: {BEHIND}")
        assert "Rank 1: waits for no rank; its last operation was allreduce 'small'" in text
        assert "Also:" not in text and "Note:" not in text
        job.await_output(re.compile(rf"`python -m mydist\.debug {dumps}` compares the ranks"))
        job.await_output(re.compile(r"1\]<stderr>:  File .* in hold_the_gil"))
        output = job.output()
        header = output.index("other ranks wait for this rank; its stacks follow")
        assert header < output.index(" thread 0x")
        waits = re.compile(
            rf'0\]<stderr>:  File ".*flight_recorded.py", line {LINE_OF_LOSS} in main'
        )
        assert not waits.search(output), "a rank that waits is not waited for"
        job.process.send_signal(signal.SIGQUIT)
        await_verdict(dumps, "signal", f"Verdict: {BEHIND}")
        job.await_output(waits)  # Beside the dumps, and through mydistrun.
        job.tell("enough")
        assert job.process.wait(60) == 0, job.output()


@pytest.mark.parametrize("how", ["fails", "killed"])
def test_a_failure_leaves_the_dumps_of_those_that_can(how: str, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    worker = (str(WORKER), how, str(tmp_path), str(VICTIM))
    outcome = launch(NP, "local", *worker, flags=["--flight-recorder-dir", str(dumps)])
    assert outcome.code != 0
    found, problems = read_folder(dumps)
    assert not problems
    assert {dump.rank: dump.reason for dump in found} == dict.fromkeys(
        [0, 2] if how == "killed" else range(NP), "failure"
    )
    text = verdict(found)
    if how == "killed":
        assert text.startswith("Verdict: rank 1 has left no dump, and is probably dead, "), text
    else:
        assert text.startswith(f"Verdict: {BEHIND}"), text
        assert "Rank 1 said: an exception ended its program" in text
