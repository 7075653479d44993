"""What exceptions know as data, and which of them mydistrun is told of."""

from __future__ import annotations

import os
import signal
import sys

import pytest

import mydist as md
from mydist.job import failure_report
from mydist.launcher.failure_record import FailureRecord, Progress, RecordFilter, parse_record


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (md.MydistError, "INTERNAL"),
        (md.MismatchError, "MISMATCH"),
        (md.PeerLostError, "PEER_LOST"),
        (md.CollectiveTimeoutError, "TIMEOUT"),
        (md.AbortedError, "ABORTED"),
        (md.VersionMismatchError, "VERSION_MISMATCH"),
    ],
)
def test_every_error_has_a_record(kind: type[md.MydistError], code: str) -> None:
    failure = kind("raised in Python").failure
    assert failure["code"] == code
    assert failure["ranks"] == []
    assert set(failure) == {
        *("code", "operation", "tensor", "phase", "ranks"),
        *("host", "pid", "signal", "finding", "progress", "own_progress", "elapsed"),
        *("cause", "hint", "hosts", "pids"),
    }
    assert failure["own_progress"] == failure["progress"] == {}
    assert failure["hosts"] == failure["pids"] == []


@pytest.mark.parametrize(("members", "lost"), [(None, 1), ((2, 5), 5)])
def test_mydistrun_understands_what_a_rank_tells(
    members: tuple[int, ...] | None,
    lost: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(failure_report, "_members", members)
    monkeypatch.setenv("MYDIST_FAILURE_TAG", "tag")
    monkeypatch.setattr(failure_report, "_process", os.getpid())
    error = md.PeerLostError("rank 1 has died")
    known = {"code": "PEER_LOST", "operation": "allreduce", "tensor": "x", "ranks": [1], "pid": 7}
    last = {"operation": "broadcast", "tensor": "w", "number": 3, "ago": 0.5}
    of_lost = {"operation": "allreduce", "tensor": "v", "number": 2, "age": 1.5}
    known |= {"own_progress": last, "progress": {0: last, 1: of_lost}}
    monkeypatch.setattr(error, "failure", known, raising=False)
    failure_report._tell(error)
    failure_report._tell(KeyError("x"))
    rest, records = RecordFilter("tag").feed(capfd.readouterr().err.encode())
    assert rest == b""
    assert [parse_record(record) for record in records] == [
        FailureRecord(
            *("PeerLostError", "PEER_LOST", (lost,), "allreduce", "x", os.getpid(), 7),
            progress=Progress("broadcast", "w", 3),
            peer_progress=(Progress("allreduce", "v", 2, 1.5),),
        ),
        FailureRecord("KeyError", pid=os.getpid()),
    ]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Installs the hook; the exceptions that come to the hook which was there before."""
    found: list[BaseException] = []

    def before(kind: object, error: BaseException, traceback: object) -> None:
        found.append(error)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "excepthook", before)
    monkeypatch.setattr(failure_report, "_process", 0)
    monkeypatch.setenv("MYDIST_FAILURE_TAG", "tag")
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    failure_report.install()
    assert sys.excepthook is not before
    return found


@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError, ValueError])
def test_what_happens_while_a_failure_is_told_does_not_hide_it(
    problem: type[BaseException], shown: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(record: dict[str, object]) -> None:
        raise problem

    monkeypatch.setattr(failure_report, "_write", interrupted)
    error = ValueError("bad data")
    sys.excepthook(ValueError, error, None)
    assert shown == [error]


def test_a_second_interrupt_while_the_first_is_shown_is_no_error_of_the_hook(
    shown: list[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    first = KeyboardInterrupt()
    sys.excepthook(KeyboardInterrupt, first, None)
    assert shown == [first]
    assert '"type": "KeyboardInterrupt"' in capfd.readouterr().err


def test_a_failure_with_a_closed_error_stream_is_not_told(shown: list[BaseException]) -> None:
    error, saved = ValueError("bad data"), os.dup(2)
    os.close(2)
    try:
        sys.excepthook(ValueError, error, None)
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    assert shown == [error]


def test_an_exception_raised_from_a_loss_is_told_as_the_loss() -> None:
    loss = md.PeerLostError("rank 1 has died")
    wrapped = RuntimeError("training failed")
    wrapped.__cause__ = loss
    outer = ValueError("while cleaning up")
    outer.__context__ = wrapped
    assert failure_report._behind(outer) is loss
    own = KeyError("x")
    own.__context__ = own  # A circle ends.
    assert failure_report._behind(own) is own


def lost(code: str, ranks: list[int], number: int) -> md.MydistError:
    """As C++ raises it, by a rank that has completed `number` collectives."""
    error = {"PEER_LOST": md.PeerLostError, "TIMEOUT": md.CollectiveTimeoutError}.get(code)
    raised = (error or md.AbortedError)("words")
    own = {"operation": "allreduce", "tensor": "w", "number": number}
    raised.failure = {"code": code, "ranks": ranks, "tensor": "x", "own_progress": own}
    return raised


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What a rank tells from now on."""
    records: list[dict[str, object]] = []
    monkeypatch.setattr(failure_report, "_process", os.getpid())
    monkeypatch.setattr(failure_report, "_last_raised", None)
    monkeypatch.setattr(failure_report, "_write", records.append)
    return records


def test_a_loss_is_told_when_it_is_raised_and_what_follows_from_it_is_not(
    told: list[dict[str, object]],
) -> None:
    failure_report._note_raised(lost("ABORTED", [], 3))  # The program itself has shut down.
    assert told == []
    failure_report._note_raised(lost("PEER_LOST", [1], 3))
    failure_report._note_raised(lost("ABORTED", [2], 3))
    assert [(record["code"], record["ranks"], record["caught"]) for record in told] == [
        ("PEER_LOST", [1], True)
    ]
    failure_report.note_recovery()
    assert told[1:] == [{"type": "", "code": "RECOVERED", "pid": os.getpid()}]
    failure_report.tell_at_exit()
    assert len(told) == 2


@pytest.mark.parametrize(("completed", "is_told"), [(3, True), (4, False)])
def test_a_time_out_is_told_at_exit_where_no_collective_has_succeeded_since(
    completed: int, is_told: bool, told: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    failure_report._note_raised(lost("TIMEOUT", [1], 3))
    assert told == []
    monkeypatch.setattr("mydist._C.own_progress", lambda: {"number": completed})
    failure_report.tell_at_exit()
    assert [record["code"] for record in told] == ["TIMEOUT"] * is_told


def test_what_a_program_does_with_signals_comes_first() -> None:
    arrivals, notices = os.pipe()
    os.set_blocking(notices, False)
    signal.set_wakeup_fd(notices)
    try:
        failure_report._tell_waits_on_sigcont()
        assert signal.getsignal(signal.SIGCONT) is signal.SIG_DFL
    finally:
        assert signal.set_wakeup_fd(-1) == notices
        os.close(arrivals)
        os.close(notices)
    signal.signal(signal.SIGCONT, signal.SIG_IGN)
    try:
        failure_report._tell_waits_on_sigcont()
        assert signal.getsignal(signal.SIGCONT) is signal.SIG_IGN
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
