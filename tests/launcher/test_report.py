"""The failure report names the cause, not its consequences, on one screen."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from mydist.launcher.failure_record import FailureRecord, Progress
from mydist.launcher.report import ChildEnd, exit_code, find_cause, format_failure

LOST = FailureRecord("PeerLostError", "PEER_LOST", (1,))


def end(rank: int, status: int, **more: object) -> ChildEnd:
    return ChildEnd(rank, "h1", 100 + rank, status, 1.25, **more)  # type: ignore[arg-type]


def test_success_has_no_cause() -> None:
    assert find_cause([end(0, 0), end(1, -15, stopped=True)], {}) is None


def test_first_failure_is_the_cause() -> None:
    assert find_cause([end(0, 0), end(2, 3), end(1, 4)], {}) == end(2, 3)


def test_the_survivor_that_ends_first_is_not_the_cause() -> None:
    tails = {
        0: ["Traceback (most recent call last):", "mydist.PeerLostError: rank 1 is gone"],
        1: ["Traceback (most recent call last):", "ZeroDivisionError: division by zero"],
    }
    failures = {0: LOST, 1: FailureRecord("ZeroDivisionError")}
    ends = [end(0, 1), end(1, 1), end(2, -15, stopped=True)]
    cause = find_cause(ends, failures)
    assert cause == end(1, 1)
    assert format_failure(cause, ends, tails, failures) == (
        "mydistrun: rank 1 on host h1 (pid 101) exited with code 1 after 1.2 s\n"
        "  last lines of its error output:\n"
        "    | Traceback (most recent call last):\n"
        "    | ZeroDivisionError: division by zero\n"
        "  then rank 0 on host h1 (pid 100) exited with code 1: PeerLostError\n"
        "  stopped by mydistrun: rank 2"
    )


def test_a_rank_that_a_signal_ended_is_a_cause_whatever_it_said_before() -> None:
    killed = end(1, -signal.SIGSEGV)
    assert find_cause([end(0, 1), killed], {0: LOST, 1: LOST}) == killed


def test_when_all_are_consequences_the_first_is_named() -> None:
    assert find_cause([end(1, 1), end(0, 1)], {0: LOST, 1: LOST}) == end(1, 1)


def test_a_silent_rank_is_the_cause_although_it_said_nothing() -> None:
    told = FailureRecord(
        "PeerLostError", "PEER_LOST", (1,), "allreduce", "x", peer_pid=101, finding="silent"
    )
    ends = [end(2, 1), end(0, 1), end(1, -signal.SIGKILL, stopped=True)]
    cause = find_cause(ends, {0: told, 2: told})
    assert cause == ends[2]
    assert exit_code(cause, ends) == 1
    assert format_failure(cause, ends, {}, {0: told, 2: told}) == (
        "mydistrun: rank 1 on host h1 (pid 101) gave no sign of life; other ranks lost it in "
        "allreduce 'x'\n"
        "  it printed nothing to its error output\n"
        "  then rank 0 on host h1 (pid 100) exited with code 1: PeerLostError in allreduce 'x'\n"
        "  then rank 2 on host h1 (pid 102) exited with code 1: PeerLostError in allreduce 'x'"
    )


def test_a_silent_rank_that_mpirun_has_let_go_on_is_the_cause_all_the_same() -> None:
    told = FailureRecord("PeerLostError", "PEER_LOST", (1,), "allreduce", "x", finding="silent")
    ends = [end(0, 1), end(1, 0, unknown=True)]
    cause = find_cause(ends, {0: told, 1: told})
    assert cause == ends[1]
    assert format_failure(cause, ends, {}, {0: told, 1: told}).splitlines()[:2] == [
        "mydistrun: rank 1 on host h1 (pid 101) gave no sign of life; other ranks lost it in "
        "allreduce 'x'",
        "  it printed nothing to its error output",
    ]


def test_a_rank_that_left_early_is_blamed_by_name() -> None:
    told = FailureRecord("AbortedError", "ABORTED", (1,), "allreduce", "two")
    ends = [end(2, 0), end(0, 1), end(1, 0)]
    cause = find_cause(ends, {0: told})
    assert cause == end(1, 0)
    assert exit_code(cause, ends) == 1
    assert format_failure(cause, ends, {}, {0: told}).splitlines() == [
        "mydistrun: rank 1 on host h1 (pid 101) exited with code 0 after 1.2 s, while other ranks "
        "still needed it for allreduce 'two'",
        "  it printed nothing to its error output",
        "  then rank 0 on host h1 (pid 100) exited with code 1: AbortedError in allreduce 'two'",
    ]


def test_a_rank_whose_end_is_not_known_is_blamed_when_others_lost_it() -> None:
    ends = [end(0, 1), end(1, 0, unknown=True)]
    cause = find_cause(ends, {0: LOST})
    assert cause is not None and cause.child == 1
    assert "left the job (its exit code is unknown)" in format_failure(cause, ends, {}, {0: LOST})


def test_a_victim_alone_is_called_one_and_early_ends_are_listed() -> None:
    nobody = FailureRecord("PeerLostError", "PEER_LOST")
    ends = [end(1, 0), end(0, 1), end(2, 0)]
    assert find_cause(ends, {0: nobody}) == ends[1]
    assert format_failure(ends[1], ends, {0: ["words"]}, {0: nobody}).splitlines()[3:] == [
        "  another rank failed first and printed nothing; this rank failed because of it",
        "  rank 1 had already exited with code 0",
    ]


@pytest.mark.parametrize("status", [-15, 0, 143])
def test_a_rank_that_has_said_that_it_leaves_is_blamed_although_it_was_stopped(status: int) -> None:
    """It waits for the others to leave, and needs a moment to end: mydistrun may be sooner."""
    told = FailureRecord("AbortedError", "ABORTED", (1,), "allreduce", "two")
    ends = [end(2, 1), end(0, 1), end(1, status, stopped=True)]
    failures = {0: told, 2: told}
    cause = find_cause(ends, failures)
    assert cause is not None and exit_code(cause, ends) == 1
    assert format_failure(cause, ends, {}, failures).splitlines() == [
        "mydistrun: rank 1 on host h1 (pid 101) left the job (its exit code is unknown) after "
        "1.2 s, while other ranks still needed it for allreduce 'two'",
        "  it printed nothing to its error output",
        "  then rank 0 on host h1 (pid 100) exited with code 1: AbortedError in allreduce 'two'",
        "  then rank 2 on host h1 (pid 102) exited with code 1: AbortedError in allreduce 'two'",
    ]


def test_who_is_said_to_be_lost_is_listed() -> None:
    ends = [end(0, 1), end(1, -15, stopped=True)]
    failures = {0: LOST}
    cause = find_cause(ends, failures)
    assert cause == ends[0]
    assert format_failure(cause, ends, {0: ["words"]}, failures).splitlines()[3:] == [
        "  another rank failed first and printed nothing; this rank failed because of it",
        "  the other ranks report that rank 1 left first; check how its program ends",
        "  stopped by mydistrun: rank 1",
    ]


def test_a_time_out_comes_before_the_losses_it_causes() -> None:
    late = FailureRecord("CollectiveTimeoutError", "TIMEOUT", (2,), "allreduce", "x", 7)
    lost = FailureRecord("PeerLostError", "PEER_LOST", (1,), "allreduce", "x")
    ends = [end(0, 1), end(1, -15, stopped=True), end(2, -15, stopped=True)]
    cause = find_cause(ends, {0: lost, 1: late})
    assert cause is not None
    assert format_failure(cause, ends, {}, {0: lost, 1: late}).splitlines() == [
        "mydistrun: rank 2 on host h1 (pid 102) did not come in time; other ranks timed out "
        "waiting for it in allreduce 'x'",
        "  it printed nothing to its error output",
        "  then rank 0 on host h1 (pid 100) exited with code 1: PeerLostError in allreduce 'x'",
        "  then rank 1 on host h1 (pid 101) ended with CollectiveTimeoutError in allreduce 'x'",
    ]


WAITED = FailureRecord("CollectiveTimeoutError", "TIMEOUT", (), "allreduce", "x")


def waited_for(*ranks: int, finding: str = "late") -> FailureRecord:
    return replace(WAITED, ranks=ranks, finding=finding)


@pytest.mark.parametrize(
    ("told", "blamed"),
    [
        ({0: waited_for(3), 2: waited_for(3)}, 3),
        # mpirun lets a stopped rank go on before it ends it.
        ({0: waited_for(3), 2: waited_for(3), 3: waited_for(0)}, 3),
        ({0: waited_for(3, finding="silent"), 2: waited_for(0)}, 3),
        ({0: waited_for(3, finding="silent"), 2: WAITED}, 3),
        ({0: waited_for(3, 1), 2: waited_for(3)}, 0),
        ({0: waited_for(2), 2: waited_for(0)}, 0),
        ({0: waited_for(3, finding="silent"), 2: waited_for(1, finding="silent")}, 0),
    ],
)
def test_the_rank_that_time_outs_agree_on_comes_first(
    told: dict[int, FailureRecord], blamed: int
) -> None:
    ends = [end(rank, 1) for rank in told]
    ends += [end(rank, -9, stopped=True) for rank in range(4) if rank not in told]
    cause = find_cause(ends, told)
    assert cause is not None and cause.child == blamed
    assert exit_code(cause, ends) == 1
    first = format_failure(cause, ends, {}, told).splitlines()[0]
    agrees = "; other ranks timed out waiting for it in allreduce 'x'"
    assert first.endswith(agrees if blamed else " exited with code 1 after 1.2 s, in allreduce 'x'")
    said = " gave no answer" if told[0].got_no_answer else " did not come in time"
    assert (f"(pid 103){said}" in first) == (blamed == 3), first


@pytest.mark.parametrize(
    ("finding", "own", "says"),
    [
        ("silent", {}, "gave no answer and exited with code 1 after 1.2 s; other ranks timed out"),
        ("silent", {3: FailureRecord("ValueError")}, "exited with code 1 after 1.2 s"),
        ("late", {}, "exited with code 1 after 1.2 s; other ranks lost it"),
    ],
)
def test_a_rank_that_ended_after_others_had_waited_for_it(
    finding: str, own: dict[int, FailureRecord], says: str
) -> None:
    """As where mpirun has let a stopped rank go on."""
    ends = [end(3, 1), end(0, 0, unknown=True)]
    failures = {0: waited_for(3, finding=finding), **own}
    cause = find_cause(ends, failures)
    assert cause == ends[0]
    first = format_failure(cause, ends, {}, failures).splitlines()[0]
    assert first.startswith(f"mydistrun: rank 3 on host h1 (pid 103) {says}"), first


def test_a_rank_that_timed_out_says_for_which_ranks() -> None:
    ends = [end(0, 1), end(1, -9, stopped=True), end(2, -9, stopped=True)]
    cause = find_cause(ends, {0: waited_for(1, 2)})
    assert cause == ends[0]
    lines = format_failure(cause, ends, {}, {0: waited_for(1, 2)}).splitlines()
    assert lines[2] == "  it timed out waiting for ranks 1, 2"


def test_of_every_rank_that_timed_out_class_and_tensor_are_told() -> None:
    late = FailureRecord("CollectiveTimeoutError", "TIMEOUT", (2,), "allreduce", "x")
    failures = {0: late, 1: late, 3: FailureRecord("ValueError")}
    ends = [end(0, 1), end(1, -15, stopped=True), end(3, -15, stopped=True)]
    assert format_failure(ends[0], ends, {}, failures).splitlines()[3:] == [
        "  then rank 1 on host h1 (pid 101) ended with CollectiveTimeoutError in allreduce 'x'",
        "  then rank 3 on host h1 (pid 103) ended with ValueError",
    ]


def test_a_rank_that_never_called_init_over_mpi_is_named() -> None:
    late = FailureRecord("CollectiveTimeoutError", "TIMEOUT", pid=7)
    ends = [end(0, 1), *(end(rank, 0, unknown=True, stopped=True) for rank in (1, 2))]
    cause = find_cause(ends, {0: late, 2: late})
    assert cause == ends[0]
    assert format_failure(cause, ends, {}, {0: late, 2: late}).splitlines()[2:] == [
        "  rank 1 reported no error; check that every rank calls init()",
        "  then rank 2 on host h1 (pid 102) ended with CollectiveTimeoutError",
        "  stopped by mydistrun, or ended before: rank 1",
    ]


def test_a_rank_that_one_of_those_that_timed_out_names_comes_first() -> None:
    """As where MPI_Init waits for a stopped rank: only the ranks of its host see it."""
    blind = FailureRecord("CollectiveTimeoutError", "TIMEOUT", operation="init")
    sees = replace(blind, ranks=(3,), finding="silent", peer_pid=77)
    ends = [end(0, 1), end(1, 1), end(2, -15, stopped=True), end(3, -9, stopped=True)]
    failures = {0: blind, 1: blind, 2: sees}
    cause = find_cause(ends, failures)
    assert cause is not None and cause.child == 3
    assert format_failure(cause, ends, {}, failures).splitlines()[0] == (
        "mydistrun: rank 3 on host h1 (pid 103) gave no answer; other ranks timed out waiting for "
        "it in init"
    )
    assert exit_code(cause, ends) == 1


def test_survivors_that_were_stopped_while_they_ended_fail_the_job() -> None:
    late = FailureRecord("CollectiveTimeoutError", "TIMEOUT", (1,))
    ends = [end(0, -15, stopped=True), end(1, 0)]
    cause = find_cause(ends, {0: late})
    assert cause is not None and exit_code(cause, ends) == 1


def test_a_killed_rank_is_named_with_signal_operation_and_tensor() -> None:
    told = FailureRecord("PeerLostError", "PEER_LOST", (1,), "allreduce", "x", 5, 7)
    ends = [replace(end(0, 1), pid=0), replace(end(1, -signal.SIGSEGV), pid=0)]
    cause = find_cause(ends, {0: told})
    assert cause == ends[1]
    assert format_failure(cause, ends, {}, {0: told}).splitlines() == [
        "mydistrun: rank 1 on host h1 (pid 7) was killed by SIGSEGV (signal 11) after 1.2 s; "
        "other ranks lost it in allreduce 'x'",
        "  it printed nothing to its error output",
        "  then rank 0 on host h1 (pid 5) exited with code 1: PeerLostError in allreduce 'x'",
    ]


def test_of_several_lost_ranks_each_has_its_own_pid() -> None:
    told = FailureRecord("PeerLostError", "PEER_LOST", (1, 2), "allreduce", "x", peer_pids=(0, 8))
    ends = [replace(end(rank, -signal.SIGKILL), pid=0) for rank in (2, 1)]
    lines = format_failure(ends[0], ends, {}, {0: told}).splitlines()
    assert lines[0].startswith("mydistrun: rank 2 on host h1 (pid 8) was killed"), lines
    assert lines[2].startswith("  then rank 1 on host h1 was killed"), lines


def test_a_killed_rank_is_named_with_what_others_waited_in_when_mpirun_ended_them() -> None:
    waits = FailureRecord("", "WAITS", (), "allreduce", "x", 5)
    ends = [replace(end(1, -signal.SIGKILL), pid=0), end(0, 0, unknown=True)]
    cause = find_cause(ends, {})
    assert cause == ends[0]
    head = "mydistrun: rank 1 on host h1 was killed by SIGKILL (signal 9) after 1.2 s"
    told = {0: waits, 1: replace(waits, tensor="own")}
    assert format_failure(cause, ends, {}, {}, told).splitlines()[0] == (
        f"{head}; other ranks waited in allreduce 'x'"
    )
    assert format_failure(cause, ends, {}, {}, {1: waits}).splitlines()[0] == head


def test_what_others_have_caught_tells_of_the_cause() -> None:
    caught = replace(LOST, operation="allreduce", tensor="x", peer_pid=7, is_caught=True)
    own = FailureRecord("MismatchError", "MISMATCH", (1,), "broadcast", "y", is_caught=True)
    ends = [replace(end(1, -signal.SIGKILL), pid=0), end(0, 0), end(2, 0)]
    told = {0: own, 2: caught}
    assert format_failure(ends[0], ends, {}, {}, None, told).splitlines() == [
        "mydistrun: rank 1 on host h1 (pid 7) was killed by SIGKILL (signal 9) after 1.2 s; "
        "other ranks lost it in allreduce 'x'",
        "  it printed nothing to its error output",
    ]


def test_a_rank_that_ended_before_others_waited_for_it_is_blamed() -> None:
    late = FailureRecord("CollectiveTimeoutError", "TIMEOUT", (1,), "init")
    ends = [end(1, 0), end(0, 1)]
    cause = find_cause(ends, {0: late})
    assert cause == ends[0] and exit_code(cause, ends) == 1
    text = "mydistrun: rank 1 on host h1 (pid 101) exited with code 0 after 1.2 s, while other "
    assert format_failure(cause, ends, {}, {0: late}).startswith(
        f"{text}ranks still needed it for init\n"
    )
    stopped = replace(ends[0], stopped=True)
    cause = find_cause([stopped, ends[1]], {0: late})
    assert cause is not None and cause.child == 1 and cause.unknown


def test_a_stopped_rank_that_raised_is_blamed_before_victims() -> None:
    failures = {0: LOST, 1: FailureRecord("ValueError")}
    cause = find_cause([end(0, 1), end(1, -15, stopped=True)], failures)
    assert cause == end(1, 1, stopped=True)


def test_an_improper_end_is_said() -> None:
    assert end(0, 1, improper=True).describe().startswith("ended without finalizing MPI")


@pytest.mark.parametrize(
    ("status", "more", "words", "code"),
    [
        (3, {}, "exited with code 3", 3),
        (-signal.SIGKILL, {}, "was killed by SIGKILL (signal 9)", 137),
        (-signal.SIGSEGV, {}, "was killed by SIGSEGV (signal 11)", 139),
        (-99, {}, "was killed by a signal (signal 99)", 227),
        (-9, {"out_of_memory": True},
         "was killed by SIGKILL (signal 9); the kernel reports that memory ran out", 137),
        (1, {"lost": "ssh exited with 255"}, "was lost: ssh exited with 255", 1),
    ],
)  # fmt: skip
def test_words_and_exit_codes(status: int, more: dict[str, object], words: str, code: int) -> None:
    assert end(0, status, **more).describe() == words
    assert end(0, status, **more).exit_code == code


def test_a_thousand_failures_fit_one_screen() -> None:
    ends = [end(rank, 1) for rank in range(0, 1000, 2)]
    ends += [end(rank, -15, stopped=True) for rank in range(1, 1000, 2)]
    text = format_failure(ends[0], ends, {0: ["x"] * 30}, {})
    assert len(text.splitlines()) < 45
    assert "… and 491 more ranks failed" in text
    assert "ranks 1, 3, 5, " in text and "… (500 in all)" in text
    ends = [end(0, 1)] + [end(rank, -15, stopped=True) for rank in (*range(1, 998), 999)]
    assert format_failure(ends[0], ends, {}, {}).endswith(": ranks 1-997, 999")


BEHIND = Progress("allreduce", "a", 12)
AHEAD = Progress("broadcast", "b", 13)
LAST_LINES = "  last collective of "


def progress_lines(
    cause: ChildEnd, failures: dict[int, FailureRecord], waits: dict[int, FailureRecord]
) -> list[str]:
    ends = [cause] + [end(rank, 1) for rank in failures if rank != cause.child]
    lines = format_failure(cause, ends, {}, failures, waits).splitlines()
    return [line for line in lines if line.startswith((LAST_LINES, "  … and of"))]


def test_how_far_the_ranks_have_come_is_told_by_groups_where_it_differs() -> None:
    lost = replace(LOST, operation="allreduce", tensor="c")
    failures = {rank: replace(lost, progress=AHEAD) for rank in (0, 2, 3)}
    failures[4] = replace(lost, progress=BEHIND)
    failures[5] = replace(lost, progress=Progress("", "", 0))
    failures[6] = lost  # It was told by no rank.
    assert progress_lines(end(1, -9), failures, {}) == [
        f"{LAST_LINES}rank 5: none",
        f"{LAST_LINES}rank 4: allreduce 'a', number 12",
        f"{LAST_LINES}ranks 0, 2, 3: broadcast 'b', number 13",
    ]
    assert progress_lines(end(1, -9), {0: failures[0], 2: failures[2]}, {}) == []
    waits = {4: FailureRecord("", "WAITS", progress=BEHIND), 0: FailureRecord("", "WAITS")}
    assert progress_lines(end(1, -9), {0: failures[0]}, waits) == [
        f"{LAST_LINES}rank 4: allreduce 'a', number 12",
        f"{LAST_LINES}rank 0: broadcast 'b', number 13",
    ]


def test_how_far_the_cause_has_come_is_told_where_nothing_else_says_it() -> None:
    lost = replace(LOST, operation="allreduce", tensor="c", progress=BEHIND)
    own = FailureRecord("ValueError", progress=BEHIND)
    assert progress_lines(end(1, 1), {0: lost, 1: own}, {}) == [
        f"{LAST_LINES}ranks 0, 1: allreduce 'a', number 12"
    ]
    in_a_call = FailureRecord("MismatchError", "MISMATCH", (), "allreduce", "c", progress=BEHIND)
    assert progress_lines(end(1, 1), {0: lost, 1: in_a_call}, {}) == []
    assert progress_lines(end(1, 1), {0: lost, 1: FailureRecord("ValueError")}, {}) == []


def test_ranks_that_differ_all_fill_no_more_than_some_lines() -> None:
    failures = {rank: replace(LOST, progress=replace(AHEAD, number=rank)) for rank in range(2, 30)}
    lines = progress_lines(end(1, -9), failures, {})
    assert len(lines) == 9
    assert lines[0] == f"{LAST_LINES}rank 2: broadcast 'b', number 2"
    assert lines[-1] == "  … and of more ranks, 20 others"


def test_what_others_know_of_a_dead_rank_is_told_with_what_they_have_done() -> None:
    def told(*of_dead: Progress | None) -> FailureRecord:
        return replace(LOST, ranks=(1,), progress=AHEAD, peer_progress=of_dead)

    failures = {0: told(replace(BEHIND, number=11, age=0.1)), 2: told(replace(BEHIND, age=0.3))}
    failures |= {3: told(None), 4: told()}
    lines = [f"{LAST_LINES}rank 1: allreduce 'a', number 12"]
    lines += [f"{LAST_LINES}ranks 0, 2-4: broadcast 'b', number 13"]
    assert progress_lines(end(1, -9), failures, {}) == lines
    old = {0: told(replace(BEHIND, age=2.3))}
    assert progress_lines(end(1, -9), old, {})[0] == lines[0] + ", as told 2 s before"
    equal = {0: told(AHEAD), 2: told(AHEAD)}
    assert progress_lines(end(1, -9), equal, {}) == [
        f"{LAST_LINES}ranks 0-2: broadcast 'b', number 13"
    ]
    # What the rank says itself counts more than what others know of it.
    own = {**failures, 1: FailureRecord("ValueError", progress=AHEAD)}
    assert progress_lines(end(1, -9), own, {}) == [
        f"{LAST_LINES}ranks 0-4: broadcast 'b', number 13"
    ]
