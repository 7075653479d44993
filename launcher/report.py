"""Who failed first, and the one screen that says so. Pure.

When a rank dies the others soon fail as well, because they lost their peer, and may even be seen
to exit before it. The cause is therefore the first failure of a rank that has not said, in its
FailureRecord, that it lost another.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mydist.launcher.failure_record import FailureRecord

MAX_OTHERS_LISTED = 8


@dataclass(frozen=True)
class RankExit:
    """How a rank ended. `status` is its exit code or -N for signal N; `at` in seconds of the job.

    `stopped` says that mydistrun had already asked it to end. `improper` says that it ended without
    finalizing MPI (then `status` is mpirun's, its own is unknown). `lost` is why the host was lost
    (then `status` is the exit code to pass on).
    """

    rank: int
    host: str
    pid: int
    status: int
    at: float
    stopped: bool = False
    improper: bool = False
    lost: str = ""
    out_of_memory: bool = False

    @property
    def failed(self) -> bool:
        """Whether this end is a failure of the rank's own."""
        return bool(self.lost) or (self.status != 0 and not self.stopped)

    @property
    def exit_code(self) -> int:
        """As a shell would give it: 128 + N for signal N."""
        return 128 - self.status if self.status < 0 else self.status

    def describe(self) -> str:
        """The end in words, e.g. `exited with code 3` or `was killed by SIGKILL (signal 9)`."""
        if self.lost:
            return f"was lost: {self.lost}"
        if self.improper:
            return "ended without finalizing MPI, as os._exit() does (its own exit code is unknown)"
        if self.status >= 0:
            return f"exited with code {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = "a signal"
        memory = "; the kernel reports that memory ran out" if self.out_of_memory else ""
        return f"was killed by {name} (signal {-self.status}){memory}"


def is_consequence(failure: FailureRecord | None) -> bool:
    """Whether a rank has said that it failed because it lost another rank."""
    return failure is not None and failure.is_consequence


def raised_itself(failure: FailureRecord | None) -> bool:
    """Whether a rank has said that it raised an exception that is not such a consequence."""
    return failure is not None and not failure.is_consequence


def _is_victim(end: RankExit, failures: Mapping[int, FailureRecord]) -> bool:
    """Whether a rank failed because it lost another. What it said says nothing of a signal."""
    return end.status >= 0 and not end.lost and is_consequence(failures.get(end.rank))


def find_cause(exits: list[RankExit], failures: Mapping[int, FailureRecord]) -> RankExit | None:
    """The failure to blame, None when nothing failed. `exits` are in order of arrival.

    When every failure is a consequence, the cause may be a rank that was stopped while it ended
    with an exception of its own: then Python's exit code 1 is assumed for it.
    """
    failed = [end for end in exits if end.failed]
    for end in failed:
        if not _is_victim(end, failures):
            return end
    for end in exits:
        if failed and end.stopped and raised_itself(failures.get(end.rank)):
            return end if end.status > 0 else replace(end, status=1)
    return failed[0] if failed else None


def format_failure(
    cause: RankExit,
    exits: list[RankExit],
    tails: Mapping[int, list[str]],
    failures: Mapping[int, FailureRecord],
) -> str:
    """The report: the cause, its last error lines, and a line about the others."""
    pid = f" (pid {cause.pid})" if cause.pid else ""
    lines = [
        f"mydistrun: rank {cause.rank} on host {cause.host}{pid} {cause.describe()} "
        f"after {cause.at:.1f} s"
    ]
    tail = tails.get(cause.rank, [])
    if tail:
        lines.append("  last lines of its error output:")
        lines += [f"    | {line}" for line in tail]
    else:
        lines.append("  it printed nothing to its error output")
    if _is_victim(cause, failures):
        lines += _describe_silent_cause(cause, exits, failures)
    others = [end for end in exits if end.rank != cause.rank and (end.failed or end.stopped)]
    lines += _describe_others(others)
    return "\n".join(line.rstrip() for line in lines)


def _describe_silent_cause(
    cause: RankExit, exits: list[RankExit], failures: Mapping[int, FailureRecord]
) -> list[str]:
    """The rank named only lost another one: says which others ended before it, or are named."""
    lines = ["  that is a consequence: the first cause printed nothing"]
    before = [end for end in exits[: exits.index(cause)] if end.status == 0 and not end.stopped]
    for end in sorted(before, key=lambda end: end.rank)[:MAX_OTHERS_LISTED]:
        lines.append(f"  rank {end.rank} had already exited with code 0")
    if len(before) > MAX_OTHERS_LISTED:
        lines.append(f"  … and {len(before) - MAX_OTHERS_LISTED} more ranks exited with code 0")
    victims = {rank for rank, failure in failures.items() if failure.is_consequence}
    known = victims | {end.rank for end in before}
    accused = {rank for victim in victims for rank in failures[victim].ranks} - known
    for rank in sorted(accused)[:MAX_OTHERS_LISTED]:
        lines.append(
            f"  rank {rank} exited first (reported by the other ranks); look at how it ends"
        )
    also = sorted(victims - {cause.rank} - {end.rank for end in exits if end.failed})
    if also:
        listed = ", ".join(str(rank) for rank in also[:32])
        more = f", … ({len(also)} in all)" if len(also) > 32 else ""
        lines.append(f"  ended by the same loss: rank{'s' if len(also) > 1 else ''} {listed}{more}")
    return lines


def _describe_others(others: list[RankExit]) -> list[str]:
    lines = []
    failed = sorted((end for end in others if end.failed), key=lambda end: end.rank)
    for end in failed[:MAX_OTHERS_LISTED]:
        lines.append(f"  then rank {end.rank} on host {end.host} {end.describe()}")
    if len(failed) > MAX_OTHERS_LISTED:
        lines.append(f"  … and {len(failed) - MAX_OTHERS_LISTED} more ranks failed")
    stopped = sorted(end.rank for end in others if not end.failed)
    if stopped:
        listed = ", ".join(str(rank) for rank in stopped[:32])
        more = f", … ({len(stopped)} in all)" if len(stopped) > 32 else ""
        lines.append(
            f"  stopped by mydistrun: rank{'s' if len(stopped) > 1 else ''} {listed}{more}"
        )
    return lines
