"""Finds the child that failed first, and writes the report about it. Pure.

When a rank dies the others soon fail as well, because they lost their peer, and may even be seen
to exit before it. The cause is therefore the first failure of a rank that has not said, in its
FailureRecord, that it lost another; or, without such a failure, the rank that the others lost.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mydist.launcher.errors import EXIT_START
from mydist.launcher.failure_record import FailureRecord, Progress

MAX_OTHERS_LISTED = 8


@dataclass(frozen=True)
class ChildEnd:
    """How a child ended. `status` is its exit code or -N for signal N; `at` in seconds of the job.

    `name` is empty for a rank. `stopped` says that mydistrun had already asked the rank to end. Of
    servers: `early` says that one ended before mydistrun asked it to, `overdue` that it did not end
    when it was asked, and was killed. `unknown` says that its `status` is not known, and 0 here.
    `improper` says that it ended without finalizing MPI (then `status` is mpirun's, its own is
    unknown). `lost` is why the host was lost (then `status` is the exit code to pass on).
    """

    child: int
    host: str
    pid: int
    status: int
    at: float
    name: str = ""
    stopped: bool = False
    early: bool = False
    overdue: bool = False
    unknown: bool = False
    improper: bool = False
    lost: str = ""
    out_of_memory: bool = False

    @property
    def failed(self) -> bool:
        """Whether this end is a failure of the child's own."""
        return bool(self.lost) or self.early or (self.status != 0 and not self.stopped)

    @property
    def exit_code(self) -> int:
        """As a shell would give it: 128 + N for signal N. A server that left early has failed."""
        if self.early and self.status == 0:
            return EXIT_START
        return 128 - self.status if self.status < 0 else self.status

    def describe(self) -> str:
        """The end in words, e.g. `exited with code 3` or `was killed by SIGKILL (signal 9)`."""
        if self.lost:
            return f"was lost: {self.lost}"
        if self.improper:
            return "ended without finalizing MPI, as os._exit() does (its own exit code is unknown)"
        if self.unknown:
            return "left the job (its exit code is unknown)"
        if self.overdue:
            return "was killed by mydistrun, because SIGTERM did not end it,"
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


def _is_victim(end: ChildEnd, failures: Mapping[int, FailureRecord]) -> bool:
    """Whether a rank failed because it lost another. What it said says nothing of a signal."""
    was_signalled = end.status < 0 and not end.stopped
    return not was_signalled and not end.lost and is_consequence(failures.get(end.child))


def _failures_of(exits: list[ChildEnd], failures: Mapping[int, FailureRecord]) -> list[ChildEnd]:
    """The ends that are failures. Where a rank told of an exception, but its exit code is not its
    own or not known, that is Python's 1."""
    found = []
    for end in exits:
        if end.failed:
            found.append(end)
        elif end.child in failures and (end.stopped or end.unknown):
            found.append(end if end.status > 0 else replace(end, status=1, unknown=False))
    return found


def find_cause(exits: list[ChildEnd], failures: Mapping[int, FailureRecord]) -> ChildEnd | None:
    """The failure to blame, None when nothing failed. `exits` are in order of arrival.

    What ended while mydistrun stopped the ranks comes after what ended by itself.
    """
    failed = sorted(_failures_of(exits, failures), key=lambda end: end.stopped)
    for end in failed:
        if not _is_victim(end, failures):
            return end
    leavers = _leavers(exits, failures) if failed else []
    if leavers:
        return leavers[0]
    silent = _silent(failures)
    fell_silent = [end for end in exits if end.child in silent] if failed else []
    if fell_silent:
        return fell_silent[0]
    awaited = [end for end in exits if end.child in _missed(failures)] if failed else []
    if awaited:
        return _unless_stopped(awaited[0])
    timed_out = [end for end in failed if failures[end.child].is_timeout]
    # A rank may name a stopped rank of its host, where other ranks cannot. Its report comes first.
    timed_out.sort(key=lambda end: not failures[end.child].ranks)
    return next(iter(timed_out + failed), None)


def exit_code(cause: ChildEnd, exits: list[ChildEnd]) -> int:
    """What mydistrun ends with. A rank that left with 0 has failed the others."""
    codes = (end.exit_code for end in exits if end.failed)
    # The signal by which mydistrun itself ended a silent rank says nothing.
    own = cause.exit_code if cause.failed or cause.status > 0 else 0
    return own or next(codes, EXIT_START)


def _lost_by_others(failures: Mapping[int, FailureRecord]) -> set[int]:
    """The ranks that left, as others say, and that said nothing of a failure themselves."""
    tellers = [record for record in failures.values() if record.says_others_left]
    return {rank for record in tellers for rank in record.ranks} - failures.keys()


def _silent(failures: Mapping[int, FailureRecord]) -> set[int]:
    """The ranks that give no sign of life, as others say, and that have told of no failure of
    their own: mpirun lets a stopped rank go on, which then raises as the others do."""
    tellers = [record for record in failures.values() if record.says_others_are_silent]
    failed = {rank for rank, record in failures.items() if raised_itself(record)}
    return {rank for record in tellers for rank in record.ranks} - failed


def _missed(failures: Mapping[int, FailureRecord]) -> dict[int, FailureRecord]:
    """The one rank that others have waited for in vain, with what the first of them says of it;
    empty where they do not agree on one.

    A rank that gave no answer comes before one that only was late. A stopped rank may go on and
    time out as well, so nobody's word counts about itself.
    """
    for is_sure in (True, False):
        tellers = {
            by: record
            for by, record in failures.items()
            if record.is_timeout and record.ranks and (record.got_no_answer or not is_sure)
        }
        agreed = {}
        for rank in {rank for record in tellers.values() for rank in record.ranks}:
            records = [record for by, record in tellers.items() if by != rank]
            if records and all(record.ranks == (rank,) for record in records):
                agreed[rank] = records[0]
        if len(agreed) == 1:
            return agreed
    return {}


def _missed_as(cause: ChildEnd, failures: Mapping[int, FailureRecord]) -> FailureRecord | None:
    """What others say of it, if it is the cause because they have waited for it in vain."""
    record = _missed(failures).get(cause.child)
    if record is None or _ended_well(cause) or cause.child in _lost_by_others(failures):
        return None
    # One that gave no answer has failed others before it ended, as where mpirun let it go on.
    has_failed_before = record.got_no_answer and not raised_itself(failures.get(cause.child))
    is_own = cause.failed and not _is_victim(cause, failures)
    return None if is_own and not has_failed_before else record


def _leavers(exits: list[ChildEnd], failures: Mapping[int, FailureRecord]) -> list[ChildEnd]:
    """Of those the ranks that ended as if all were well. One that was stopped may be a victim,
    unless it had said itself that it leaves: then it was only slow to end.

    Also a rank that had ended when others waited for it in vain, as one that never called init().
    """
    tellers = [record for record in failures.values() if record.says_others_departed]
    departed = {rank for record in tellers for rank in record.ranks} - failures.keys()
    lost = [end for end in exits if end.child in _lost_by_others(failures) and end.status == 0]
    missed = {rank for told in failures.values() if told.is_timeout for rank in told.ranks}
    return [
        *(_unless_stopped(end) for end in exits if end.child in departed),
        *(end for end in lost if end.unknown or not end.stopped),
        *(
            end
            for end in exits
            if end.child in missed - failures.keys() and _ended_well(end) and end not in lost
        ),
    ]


def _unless_stopped(end: ChildEnd) -> ChildEnd:
    """The end. How one that was stopped would have ended is not known."""
    return replace(end, status=0, unknown=True) if end.stopped else end


def _ended_well(end: ChildEnd) -> bool:
    return end.status == 0 and not (end.stopped or end.early or end.unknown or end.lost)


def format_failure(
    cause: ChildEnd,
    exits: list[ChildEnd],
    tails: Mapping[int, list[str]],
    failures: Mapping[int, FailureRecord],
    waits: Mapping[int, FailureRecord] | None = None,
    caught: Mapping[int, FailureRecord] | None = None,
) -> str:
    """The report: the cause, its last error lines, and lines about the others.

    `waits`: what ranks waited in when mpirun ended the job. They may not know why.
    `caught`: exceptions that did not end their ranks, which tell of the cause all the same.
    """
    tellers = {**(caught or {}), **failures}
    lines = [f"mydistrun: {_headline(cause, failures, tellers, waits or {})}"]
    tail = tails.get(cause.child, [])
    if tail:
        lines.append("  last lines of its error output:")
        lines += [f"    | {line}" for line in tail]
    else:
        lines.append("  it printed nothing to its error output")
    is_victim = cause.child in failures and _is_victim(cause, failures)
    is_blamed = cause.child in _silent(failures) or _missed_as(cause, failures) is not None
    if is_victim and not is_blamed:
        lines += _describe_consequence(cause, exits, failures)
    others = [end for end in exits if end.child != cause.child]
    lines += _describe_others(others, failures)
    told = {**(waits or {}), **tellers}
    lines += _describe_progress(cause, told)
    return "\n".join(line.rstrip() for line in lines)


def _headline(
    cause: ChildEnd,
    failures: Mapping[int, FailureRecord],
    told: Mapping[int, FailureRecord],
    waits: Mapping[int, FailureRecord],
) -> str:
    """Rank, host, pid, how it ended, and in which operation on which tensor, as far as known.

    `told`: the failures, and what other ranks have caught.
    """
    text = f"{_name(cause, told)} {cause.describe()} after {cause.at:.1f} s"
    tellers = [r for r in told.values() if cause.child in r.ranks and r.is_consequence]
    place = next((record.place for record in tellers if record.place), "")
    ended = f" and {cause.describe()} after {cause.at:.1f} s" if cause.failed else ""
    if cause.child in _silent(failures):
        text = f"{_name(cause, told)} gave no sign of life{ended}"
        return f"{text}{f'; other ranks lost it in {place}' if place else ''}"
    missed = _missed_as(cause, failures)
    if missed is not None:
        what = "gave no answer" if missed.got_no_answer else "did not come in time"
        where = f" in {missed.place}" if missed.place else ""
        text = f"{_name(cause, told)} {what}{ended}"
        return f"{text}; other ranks timed out waiting for it{where}"
    own = failures.get(cause.child)
    if own is not None:
        return f"{text}, in {own.place}" if own.place else text
    if cause.early and cause.status == 0:
        return f"{text}, while the job still needed it"
    if not cause.failed:
        return f"{text}, while other ranks still needed it{f' for {place}' if place else ''}"
    if place:
        return f"{text}; other ranks lost it in {place}"
    waited = next((r.place for rank, r in sorted(waits.items()) if rank != cause.child), "")
    return f"{text}; other ranks waited in {waited}" if waited else text


def _name(end: ChildEnd, failures: Mapping[int, FailureRecord]) -> str:
    """Name, host and pid; mpirun tells no pid, but ranks tell their own and that of a lost one."""
    told = failures.get(end.child)
    by_others = (pid for record in failures.values() if (pid := record.pid_of(end.child)))
    pid = end.pid or (told.pid if told is not None else 0) or next(by_others, 0)
    name = end.name or f"rank {end.child}"
    return f"{name} on host {end.host}{f' (pid {pid})' if pid else ''}"


def _describe_consequence(
    cause: ChildEnd, exits: list[ChildEnd], failures: Mapping[int, FailureRecord]
) -> list[str]:
    """The rank named only lost another one: says which others ended before it, or are named."""
    if failures[cause.child].is_timeout:
        missing = sorted(set(failures[cause.child].ranks))
        if missing:
            return [f"  it timed out waiting for {_listed(missing)}"]
        # MPI does not tell whom MPI_Init waits for, nor mpirun how these have ended.
        silent = sorted(end.child for end in exits if end.unknown and end.child not in failures)
        if not silent:
            return []
        return [f"  {_listed(silent)} reported no error; check that every rank calls init()"]
    lines = ["  another rank failed first and printed nothing; this rank failed because of it"]
    ended = itertools.takewhile(lambda end: end.child != cause.child, exits)
    before = [end for end in ended if _ended_well(end)]
    for end in sorted(before, key=lambda end: end.child)[:MAX_OTHERS_LISTED]:
        lines.append(f"  rank {end.child} had already exited with code 0")
    if len(before) > MAX_OTHERS_LISTED:
        lines.append(f"  … and {len(before) - MAX_OTHERS_LISTED} more ranks exited with code 0")
    lost = _lost_by_others(failures) - {end.child for end in before}
    for rank in sorted(lost)[:MAX_OTHERS_LISTED]:
        lines.append(
            f"  the other ranks report that rank {rank} left first; check how its program ends"
        )
    return lines


def _describe_progress(cause: ChildEnd, told: Mapping[int, FailureRecord]) -> list[str]:
    """What the ranks completed last, those behind first: where they differ, and where nothing else
    says how far the cause has come."""
    of_others = _progress_of_blamed(told)
    known = {rank: record.progress for rank, record in told.items() if record.progress is not None}
    groups: dict[Progress, list[int]] = {}
    for rank, progress in sorted({**of_others, **known}.items()):
        groups.setdefault(progress, []).append(rank)
    own = told.get(cause.child)
    is_all_there_is = own is not None and own.progress is not None and not own.place
    if len(groups) < 2 and not is_all_there_is and not of_others:
        return []
    rows = sorted(groups.items(), key=lambda row: (row[0].number, row[1]))
    lines = [
        f"  last collective of {_listed(ranks)}: {progress.text}"
        for progress, ranks in rows[:MAX_OTHERS_LISTED]
    ]
    if len(rows) > MAX_OTHERS_LISTED:
        lines.append(f"  … and of more ranks, {len(rows) - MAX_OTHERS_LISTED} others")
    return lines


def _progress_of_blamed(told: Mapping[int, FailureRecord]) -> dict[int, Progress]:
    """The latest that others know of ranks that told nothing themselves, as they are dead or
    stopped."""
    latest: dict[int, Progress] = {}
    for record in told.values():
        for rank, progress in zip(record.ranks, record.peer_progress, strict=False):
            if progress is None or rank in told:
                continue
            known = latest.setdefault(rank, progress)
            if (progress.number, -progress.age) > (known.number, -known.age):
                latest[rank] = progress
    # Ranks that were heard of at nearly the same time make one group.
    return {rank: replace(one, age=round(one.age)) for rank, one in latest.items()}


def _listed(ranks: list[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`, or `ranks 0, 2, … (99 in all)`; `ranks` are in order."""
    runs: list[str] = []
    rest = ranks
    while rest and len(runs) < 32:
        count = next((i for i, rank in enumerate(rest) if rank != rest[0] + i), len(rest))
        count = count if count > 2 else 1
        runs.append(f"{rest[0]}-{rest[count - 1]}" if count > 1 else str(rest[0]))
        rest = rest[count:]
    more = f", … ({len(ranks)} in all)" if rest else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(runs)}{more}"


def _describe_others(others: list[ChildEnd], failures: Mapping[int, FailureRecord]) -> list[str]:
    lines = []
    failed = sorted(_failures_of(others, failures), key=lambda end: end.child)
    for end in failed[:MAX_OTHERS_LISTED]:
        error = failures[end.child].error if end.child in failures else ""
        # What one that was stopped would have exited with is a guess.
        words = end.describe() + (f": {error}" if error else "")
        lines.append(
            f"  then {_name(end, failures)} {words if end.failed else f'ended with {error}'}"
        )
    if len(failed) > MAX_OTHERS_LISTED:
        lines.append(f"  … and {len(failed) - MAX_OTHERS_LISTED} more ranks failed")
    known = {end.child for end in failed}
    for is_unknown, words in ((False, ""), (True, ", or ended before")):
        stopped = sorted(
            end.child
            for end in others
            if end.stopped and end.unknown == is_unknown and end.child not in known
        )
        if stopped:
            lines.append(f"  stopped by mydistrun{words}: {_listed(stopped)}")
    return lines
