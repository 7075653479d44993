"""What `make faults` makes of its observations, and one run of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faults.catalogue import FAULTS, PLANES, Fault, Plane
from faults.cells import Cell
from faults.checks import problems_of, time_to_end, times_to_report
from faults.peers import PeerCell
from faults.run import Run
from faults.table import Findings, format_markdown

ROOT = Path(__file__).resolve().parent.parent.parent
VICTIM = 3


def fault(key: str) -> Fault:
    return next(fault for fault in FAULTS if fault.key == key)


def plane(key: str) -> Plane:
    return next(plane for plane in PLANES if plane.key == key)


def said(text: str) -> dict[str, Any]:
    return {"text": text}


def blamed(**other: Any) -> dict[str, Any]:
    """Data of an error, all of it true but for `other`."""
    failure = {"ranks": [3], "host": "host1", "pid": 70, "signal": 9}
    return {"failure": failure | {"operation": "allreduce", "tensor": "x"} | other}


def report(at: float, since: float, error: str) -> dict[str, Any]:
    text = "allreduce 'x': rank 3 (host host1, pid 70) has died. SIGKILL (signal 9) ended rank 3."
    return {"at": at, "since": since, "error": error, **said(text), **blamed()}


def killed_run() -> Run:
    """All is as it should be when rank 3 is killed at 10 s."""
    return Run(
        ready={
            rank: {"pid": 67 + rank, "at": 9.0, "arenas": [], "frozen": True} for rank in range(4)
        },
        struck_at=10.0,
        reports={rank: report(10.5 + rank, 9.0, "PeerLostError") for rank in range(3)},
        ended_at=14.0,
        code=137,
        output="mydistrun: rank 3 on host h (pid 70) was killed by SIGKILL (signal 9) after 3 s",
    )


def problems(run: Run) -> str:
    return "\n".join(problems_of(fault("sigkill-between"), plane("gloo"), run))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (said("allreduce 'x': rank 2 (host host1, pid 69) has died"), "name rank 3 (host host1"),
        (
            said("allreduce 'x': rank 3 (host host1, pid 7) has died"),
            "name rank 3 (host host1, pid",
        ),
        (said("rank 3 (host host1, pid 70) has died"), "name allreduce 'x'"),
        ({"error": "AbortedError"}, "AbortedError, expected PeerLostError"),
        (blamed(ranks=[2]), "failure['ranks'] is [2], without 3"),
        (blamed(pid=7), "failure['pid'] is 7"),
        (blamed(host="host0"), "failure['host'] is 'host0'"),
        (blamed(signal=0), "failure['signal'] is 0, expected 9"),
        (said("allreduce 'x': rank 3 (host host1, pid 70) has died"), "name SIGKILL (signal 9)"),
    ],
)
def test_a_report_that_is_not_true_is_a_problem(change: dict[str, Any], problem: str) -> None:
    run = killed_run()
    run.reports[1] |= change
    assert problem in problems(run)
    assert "rank 1: " in problems(run) and "rank 0: " not in problems(run)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"reports": {0: report(10.5, 9.0, "PeerLostError")}}, "rank 2 reported nothing"),
        ({"left": ["process 17"]}, "left behind: process 17"),
        ({"code": 0}, "exit code 0, expected 137"),
        ({"code": None}, "did not end by itself"),
        ({"output": "mydistrun: rank 2 exited with code 1"}, "report does not say"),
        ({"ready": {3: {"pid": 70, "frozen": False}}}, "not frozen"),
    ],
)
def test_a_job_that_ends_otherwise_is_a_problem(change: dict[str, Any], problem: str) -> None:
    assert problem in problems(replace(killed_run(), **change))


def test_times_count_from_the_fault_and_without_the_wait_of_the_settings() -> None:
    run = killed_run()
    assert times_to_report(fault("sigkill-between"), run) == [0.5, 1.5, 2.5]
    assert time_to_end(run) == 4.0
    run.reports = {0: report(12.5, 9.0, ""), 1: report(12.5, 10.25, "")}
    # Between collectives the wait begins with the call, in one not before the fault.
    assert times_to_report(fault("sigstop-between"), run) == [1.5, 0.25]
    assert times_to_report(fault("sigstop-inside"), run) == [0.5, 0.25]
    assert times_to_report(fault("launcher"), run) == [4.0]


def test_the_tables_have_the_bound_three_figures_and_what_did_not_hold() -> None:
    times = [0.1, 0.3, 0.2]
    found = Findings(
        [Cell("sigkill-between", "gloo", 1.0, expected=3, runs=1, reports_s=times)],
        [
            Cell("kill/reduce/allreduce/gloo", "gloo", 1.0, 3, 1, times),
            Cell("kill/inside/barrier/gloo", "gloo", 1.0, 3, 1, [1.5], problems=["rank 1"]),
        ],
        seed=7,
        peers=[
            PeerCell("A", "exception", expected=3, learned_s=[0.25], naming=1),
            PeerCell("B", "exception", expected=3, ended_s=[2.0]),
            PeerCell("B", "sigstop-inside", expected=3),
        ],
    )
    document = json.loads(json.dumps(found.to_document("a machine", "abc")))
    assert Findings.from_document(document) == found
    text = format_markdown(document)
    assert "| SIGKILL between collectives | 1 s | 200 / 300 / 300 ms |" in text
    assert "seed 7: 2 cells run, 1 held" in text
    assert "| SIGKILL | 1 s | 1 of 2; **0.25 / 1.50 / 1.50 s**; 2 of 6 missing |" in text
    late = "250 / 250 / 250 ms; yes; 2 of 3 have no error"
    assert f"| Python exception | {late} | no error; the launcher ends them after 2.0 s |" in text
    assert "| SIGSTOP in a collective | - | not within 60 s |" in text


def test_one_fault_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from faults.__main__ import main

    path = tmp_path / "faults.json"
    chosen = [
        "--parts",
        "table",
        "--only",
        "sigkill-between-rank0",
        "--planes",
        "frozen",
        "--repeats",
        "1",
    ]
    code = main([*chosen, "--json", str(path)])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    (cell,) = Findings.from_document(json.loads(path.read_text())).cells
    assert cell.expected == len(cell.reports_s) == 3 and cell.runs == len(cell.ends_s) == 1
    assert 0 < min(cell.reports_s) <= max(cell.reports_s) < cell.ends_s[0]
    assert main(["--markdown", "--json", str(path)]) == 0
    assert capsys.readouterr().out.strip() in printed.out
