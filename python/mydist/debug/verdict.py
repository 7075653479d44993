"""The verdict over all dumps: which ranks are behind, at which operation, and which disagree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from mydist.debug.dumps import Dump, Operation
from mydist.debug.parting import Parting
from mydist.debug.rank_text import rank_text
from mydist.debug.told import told_lines

MOST_FINDINGS = 8
MOST_RANKS_IN_TABLE = 64
MOST_PAIRS = 4  # Names side by side.
MOST_COMPARED = 100  # Of the names that wait, the oldest.
ALIKE = 0.6
# Dumps that were written further apart may show different moments of the job.
APART_SECONDS = 5.0
START_APART_SECONDS = 300.0


def verdict(dumps: Sequence[Dump], problems: Sequence[str] = ()) -> str:
    """A few lines of plain English: the verdict, the other findings, and how far each rank is."""
    job = Job(dumps)
    now, before = job.disagreements()
    findings = [*now, *job.waits(), *before] or [job.nothing_found()]
    lines = [f"Verdict: {findings[0]}", ""]
    lines += [line for finding in findings[1:MOST_FINDINGS] for line in (f"Also: {finding}", "")]
    if len(findings) > MOST_FINDINGS:
        lines += [f"And {len(findings) - MOST_FINDINGS} more of this kind.", ""]
    if told := job.told():
        lines += [*told, ""]
    lines += job.table()
    if notes := [*problems, *job.notes()]:
        lines += ["", *(f"Note: {note}" for note in notes)]
    return "\n".join(lines)


def _have(ranks: Sequence[int], text: str) -> str:
    return f"{'has' if len(ranks) == 1 else 'have'} {text}"


def _it_has(ranks: Sequence[int]) -> str:
    return "it has" if len(ranks) == 1 else "they have"


def _are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


@dataclass(frozen=True)
class Wait:
    """An operation that some ranks have submitted and that has not ended there."""

    process_set: int
    name: str
    by_rank: dict[int, Operation]
    missing: list[int]  # Have a dump, and have not submitted it.
    unknown: list[int]  # Have no dump.
    since_ns: int  # On the wall clock: the first submission.
    seconds: float  # The longest wait, at its rank's dump.

    @property
    def ranks(self) -> list[int]:
        """Those that wait."""
        return sorted(self.by_rank)

    @property
    def key(self) -> tuple[int, str]:
        """What no other wait has."""
        return (self.process_set, self.name)

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """Equal for what waits for the same reason."""
        ranks = (tuple(self.ranks), tuple(self.missing), tuple(self.unknown))
        return (self.process_set, *ranks, self.any.begun_ns > 0)

    @property
    def any(self) -> Operation:
        """One of them."""
        return self.by_rank[self.ranks[0]]


class Job:
    """The dumps of one job."""

    def __init__(self, dumps: Sequence[Dump]) -> None:
        self._dumps = {dump.rank: dump for dump in dumps}
        self._size = max(dump.size for dump in dumps)
        self._without = [rank for rank in range(self._size) if rank not in self._dumps]
        self._sets: dict[int, tuple[int, ...]] = {}
        self._names: dict[int, str] = {}
        for dump in dumps:
            self._sets.update(dump.process_sets)
            self._names.update(dump.group_names)
        self._sets[0] = tuple(range(self._size))
        self._open = {
            dump.rank: [operation for operation in dump.operations if operation.is_open]
            for dump in dumps
        }
        # By rank: what has ended well last under each name.
        self._done: dict[int, dict[tuple[int, str], Operation]] = {}
        self._last_run: dict[tuple[int, int], int] = {}
        for dump in dumps:
            done = self._done.setdefault(dump.rank, {})
            for operation in dump.operations:
                if operation.state == "done":
                    done[operation.process_set, operation.name] = operation
                    key = (dump.rank, operation.process_set)
                    self._last_run[key] = max(self._last_run.get(key, 0), operation.run)
        self._known = {key for done in self._done.values() for key in done}
        self._waits = sorted(self._find_waits(), key=lambda wait: wait.since_ns)

    # Ranks that wait

    def _has_joined(self, rank: int) -> bool:
        return any(operation.op == "join" for operation in self._open[rank])

    def _find_waits(self) -> Iterable[Wait]:
        found: dict[tuple[int, str], dict[int, Operation]] = {}
        for rank in self._dumps:
            for operation in self._open[rank]:
                if operation.op != "join":
                    key = (operation.process_set, operation.name)
                    found.setdefault(key, {})[rank] = operation
        for (process_set, name), by_rank in found.items():
            members = next(iter(by_rank.values())).ranks or self._members(process_set, by_rank)
            others = [rank for rank in members if rank not in by_rank]
            yield Wait(
                process_set,
                name,
                by_rank,
                missing=[r for r in others if r in self._dumps and self._misses(r, by_rank)],
                unknown=[rank for rank in others if rank not in self._dumps],
                since_ns=min(self._dumps[r].wall(o.submitted_ns) for r, o in by_rank.items()),
                seconds=max(self._waited(r, o) for r, o in by_rank.items()),
            )

    def _members(self, process_set: int, by_rank: Iterable[int]) -> Iterable[int]:
        return self._sets.get(process_set, tuple(sorted(by_rank)))

    def _waited(self, rank: int, operation: Operation) -> float:
        """Until it failed, or until the dump."""
        end = operation.ended_ns or self._dumps[rank].monotonic_ns
        return max(0.0, (end - operation.submitted_ns) / 1e9)

    def _misses(self, rank: int, by_rank: dict[int, Operation]) -> bool:
        """Whether it has neither ended the operation, nor joined."""
        if self._has_joined(rank):
            return False
        other, waiting = next(iter(by_rank.items()))
        done = self._done[rank].get((waiting.process_set, waiting.name))
        if done is None:
            return True
        # All ranks execute in one order, so it comes after all that the other has executed.
        if done.run:
            return done.run <= self.last_run(other, waiting.process_set)
        submitted = self._dumps[other].wall(waiting.submitted_ns)
        return self._dumps[rank].wall(done.ended_ns) < submitted

    def last_run(self, rank: int, process_set: int) -> int:
        """The last number in the set's order that the rank has ended; 0: none is recorded."""
        return self._last_run.get((rank, process_set), 0)

    def waits(self) -> Iterable[str]:
        """What waits, the oldest first; what waits for the same reason is one finding."""
        told: set[tuple[int, str]] = set()
        alone: dict[tuple[object, ...], list[Wait]] = {}
        crossed: dict[int, list[Wait]] = {}
        found: list[tuple[list[Wait], Wait | None]] = []
        pair_count = searches = 0
        opposite = self._opposite_kinds()
        for wait in self._waits:
            if wait.key in told:
                continue
            told.add(wait.key)
            opposites = opposite[wait.kind]
            may_have_twin = bool(opposites) and pair_count < MOST_PAIRS and searches < MOST_COMPARED
            searches += may_have_twin
            if may_have_twin and (twin := self._twin(wait, opposites, told)):
                pair_count += 1
                told.add(twin.key)
                found.append(([wait], twin))
                continue
            group = (
                crossed.setdefault(wait.process_set, [])
                if opposites
                else alone.setdefault(wait.kind, [])
            )
            group.append(wait)
            if len(group) == 1:
                found.append((group, None))
        for waits, twin in found:
            if twin is not None:
                yield self._twins(waits[0], twin)
            elif opposite[waits[0].kind]:
                yield from self._crossed(waits)
            else:
                yield self._one(waits[0], len(waits) - 1)

    def _opposite_kinds(self) -> dict[object, set[object]]:
        """By kind of wait: the kinds of a rank that it misses and that misses one of its ranks."""
        kinds = {wait.kind: wait for wait in self._waits}
        return {
            kind: {
                other_kind
                for other_kind, other in kinds.items()
                if other.process_set == wait.process_set
                and not other.by_rank.keys().isdisjoint(wait.missing)
                and not wait.by_rank.keys().isdisjoint(other.missing)
            }
            for kind, wait in kinds.items()
        }

    def _one(self, wait: Wait, more_count: int) -> str:
        more = f" and {more_count} more" if more_count else ""
        what = f"{wait.any.label}{more}{self._of_set(wait.process_set)}"
        if wait.missing:
            who = rank_text(wait.missing)
            return (
                f"{who} {_are(wait.missing)} behind: {_it_has(wait.missing)} not submitted "
                f"{what}, for which {rank_text(wait.ranks)} {_have(wait.ranks, 'waited')} "
                f"{wait.seconds:.1f} s.{self._last_texts(wait.missing)}"
                f"{self._unknown_text(wait.unknown)}"
            )
        if wait.unknown:
            return (
                f"{rank_text(wait.unknown)} {_have(wait.unknown, 'left no dump')}, and "
                f"{_are(wait.unknown)} probably dead, stopped or through with the program. "
                f"{rank_text(wait.ranks).capitalize()} {_have(wait.ranks, 'waited')} "
                f"{wait.seconds:.1f} s for {what}."
            )
        if wait.any.state == "running" or wait.any.begun_ns:
            return (
                f"{rank_text(wait.ranks)} {_are(wait.ranks)} inside {what} for "
                f"{wait.seconds:.1f} s: all ranks have submitted it, and it has begun."
            )
        return f"all ranks have submitted {what}, and it has not begun for {wait.seconds:.1f} s."

    def _unknown_text(self, unknown: list[int]) -> str:
        return f" {rank_text(unknown).capitalize()} left no dump." if unknown else ""

    def _last_texts(self, ranks: Sequence[int]) -> str:
        return "".join(f" Rank {rank}: {self.doing(rank)}." for rank in ranks[:3])

    def _of_set(self, process_set: int) -> str:
        if process_set in self._names:
            return f" of group '{self._names[process_set]}'"
        return f" of process set {process_set}" if process_set else ""

    def _twin(self, wait: Wait, opposites: set[object], told: set[tuple[int, str]]) -> Wait | None:
        """What the ranks that miss it wait for under nearly the same name."""
        # Two names of earlier steps are not meant to be one.
        others = [
            other
            for other in self._waits
            if other.key not in told
            and other.kind in opposites
            and not {wait.key, other.key} <= self._known
        ][:MOST_COMPARED]
        best = max(others, key=lambda other: likeness(wait.any, other.any), default=None)
        return best if best and likeness(wait.any, best.any) >= ALIKE else None

    def _twins(self, wait: Wait, twin: Wait) -> str:
        sides = [(side.ranks, side.any.label, _shape_text(side.any)) for side in (wait, twin)]
        reason = "The names are nearly the same, so they are probably meant to be one"
        if "noname" in wait.name:
            reason = (
                "A call without a name is numbered, so one side has made more calls than the other"
            )
        return (
            f"the ranks wait at different names{self._of_set(wait.process_set)}, side by side:"
            f"{_side_by_side(sides)}\n  {reason}."
        )

    def _crossed(self, waits: list[Wait]) -> Iterable[str]:
        """Nothing where names that are nearly the same tell why."""
        missed: dict[int, list[Operation]] = {}
        for wait in waits:
            for rank, operation in wait.by_rank.items():
                missed.setdefault(rank, []).append(operation)
        process_set = waits[0].process_set
        parting = Parting(self._dumps, process_set, missed)
        if len(parting.sides) == 1:
            return
        sides = [
            (
                side.ranks,
                side.first.label + (f" and {side.more_count} more" if side.more_count else ""),
                _shape_text(side.first),
            )
            for side in parting.sides[:MOST_FINDINGS]
        ]
        text = parting.text()
        late = sorted({rank for wait in waits for rank in wait.missing} - missed.keys())
        none = f" {rank_text(late).capitalize()} {_have(late, 'submitted none of them')}."
        unknown = sorted({rank for wait in waits for rank in wait.unknown})
        more = (none if late else "") + self._last_texts(late) + self._unknown_text(unknown)
        yield (
            f"the ranks wait for each other{self._of_set(process_set)}: each has not submitted "
            "what the other waits for, so they call in different orders or take different branches:"
            f"{_side_by_side(sides)}"
            + (f"\n  {text}" if text else "")
            + (f"\n {more}" if more else "")
        )

    # Which ranks disagree

    def disagreements(self) -> tuple[list[str], list[str]]:
        """One finding for each name, or number, under which the ranks do different things.

        Those at which the job is, and those after which it has gone on.
        """
        by_name: dict[tuple[int, str], dict[int, Operation]] = {}
        by_run: dict[tuple[int, int], dict[int, Operation]] = {}
        for rank, dump in self._dumps.items():
            for operation in dump.operations:
                if operation.is_refused or operation.is_open and operation.op != "join":
                    by_name.setdefault((operation.process_set, operation.name), {})[rank] = (
                        operation
                    )
                elif operation.run:
                    by_run.setdefault((operation.process_set, operation.run), {})[rank] = operation
        now: list[str] = []
        before: list[str] = []
        for (process_set, _), operations in by_name.items():
            is_over = all(
                any(o.state == "done" and o.number > mine.number for o in self._done[r].values())
                for r, mine in operations.items()
            )
            (before if is_over else now).extend(self._difference(process_set, operations, ""))
        for (process_set, run), operations in by_run.items():
            now += self._difference(process_set, operations, f" at operation {run}")
        return now, before

    def _difference(
        self, process_set: int, operations: dict[int, Operation], number: str
    ) -> Iterable[str]:
        if len({operation.agreement for operation in operations.values()}) == 1:
            return
        names = {operation.name for operation in operations.values()}
        rows = {rank: operation.properties() for rank, operation in operations.items()}
        if len(names) > 1:
            rows = {rank: {"name": operations[rank].name, **row} for rank, row in rows.items()}
        keys = next(iter(rows.values()))
        differing = [key for key in keys if len({row[key] for row in rows.values()}) > 1]
        if not differing:
            return
        what = "" if len(names) > 1 else f" on {next(iter(operations.values())).name!r}"
        lines: dict[str, list[int]] = {}
        for rank, row in sorted(rows.items()):
            text = ", ".join(f"{key} {row[key] or '–'}" for key in differing)
            lines.setdefault(text, []).append(rank)
        width = max(len(rank_text(ranks)) for ranks in lines.values())
        table = "".join(f"\n    {rank_text(r):<{width}}  {text}" for text, r in lines.items())
        yield f"the ranks disagree{what}{number}{self._of_set(process_set)}:{table}"

    # How far each rank is

    def doing(self, rank: int) -> str:
        """What it waits for, or did last, at its dump."""
        dump = self._dumps.get(rank)
        if dump is None:
            return "no dump"
        waiting = self._open[rank]
        if waiting:
            oldest = min(waiting, key=lambda operation: operation.submitted_ns)
            more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
            verb = "is in" if oldest.state == "running" else "waits at"
            if oldest.state == "failed":
                verb = "failed at"
            waited = self._waited(rank, oldest)
            return f"{verb} {oldest.label}{more}, {waited:.1f} s after it submitted that"
        ended = [operation for operation in dump.operations if operation.ended_ns]
        if not ended:
            return "has submitted nothing"
        last = max(ended, key=lambda operation: operation.ended_ns)
        seconds = dump.seconds_ago(last.ended_ns)
        how = f" ({last.code})" if last.code else ""
        return (
            f"waits for no rank; its last operation was {last.label}{how}, {seconds:.1f} s before "
            "it wrote its file"
        )

    def _executed(self, rank: int) -> int:
        """How many operations of all ranks, of groups in the busiest one."""
        everybody = self._sets[0]
        whole = [number for number, ranks in self._sets.items() if ranks == everybody]
        return max(self.last_run(rank, number) for number in whole)

    def table(self) -> list[str]:
        """One line for each rank: how many operations of all it has executed, and where it is.

        Of a large job only the ranks that are behind, and some others.
        """
        last = {rank: self._executed(rank) for rank in self._dumps}
        ranks = sorted(range(self._size), key=lambda rank: (last.get(rank, -1), rank))
        shown = sorted(ranks[:MOST_RANKS_IN_TABLE])
        rows = [("rank", "host", "executed", "submitted", "at its dump")]
        for rank in shown:
            dump = self._dumps.get(rank)
            host = f"{dump.host} (pid {dump.pid})" if dump else "–"
            counts = (str(last[rank]), str(dump.submitted)) if dump else ("–", "–")
            rows.append((str(rank), host, *counts, self.doing(rank)))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            "  ".join([*(row[column].ljust(widths[column]) for column in range(4)), row[4]])
            for row in rows
        ]
        if len(ranks) > len(shown):
            lines.append(f"… and {len(ranks) - len(shown)} ranks that are not further behind")
        return lines

    def nothing_found(self) -> str:
        """Where no rank waits and the ranks agree."""
        last = {rank: self._executed(rank) for rank in self._dumps}
        behind = [rank for rank in last if last[rank] < max(last.values())]
        without = f" {rank_text(self._without).capitalize()} left no dump." if self._without else ""
        if not behind:
            return f"no rank waits for another, and all have executed the same operations.{without}"
        return (
            f"no rank waits for another, but {rank_text(behind)} {_have(behind, 'executed fewer')} "
            f"operations ({min(last.values())} of {max(last.values())}).{without}"
        )

    def told(self) -> list[str]:
        """What the ranks themselves have said of a failure or a stall, or were told: once each."""
        said: dict[str, list[int]] = {}
        for rank, dump in sorted(self._dumps.items()):
            if dump.message:
                said.setdefault(dump.message, []).append(rank)
        return told_lines(said)[:MOST_FINDINGS]

    def notes(self) -> Iterable[str]:
        """What makes the verdict less sure."""
        dumps = list(self._dumps.values())
        if len({dump.size for dump in dumps}) > 1:
            yield "The dumps are of jobs of different sizes; use a new folder for each job."
        first, last = (f(dump.started_wall_ns for dump in dumps) for f in (min, max))
        if (last - first) / 1e9 > START_APART_SECONDS:
            yield "The ranks did not start at the same time, so the dumps may be of several jobs."
        newest = max(dump.wall_ns for dump in dumps)
        for dump in dumps:
            if (newest - dump.wall_ns) / 1e9 > APART_SECONDS:
                seconds = (newest - dump.wall_ns) / 1e9
                yield f"The dump of rank {dump.rank} is {seconds:.1f} s older than the newest one."
        for dump in dumps:
            if dump.dropped:
                yield f"Rank {dump.rank} has dropped {dump.dropped} events of its recorder."
        versions = {dump.version for dump in dumps}
        if len(versions) > 1:
            yield f"The ranks run different versions of mydist: {', '.join(sorted(versions))}."
        if self._without:
            yield (
                f"{rank_text(self._without).capitalize()} left no dump: a rank that was killed "
                "cannot, and one that ended in order does not."
            )


def likeness(one: Operation, other: Operation) -> float:
    """Of two names, from 0 to 1."""
    return SequenceMatcher(None, one.name, other.name, autojunk=False).ratio()


def _side_by_side(sides: Iterable[tuple[list[int], str, str]]) -> str:
    """A line for each: its ranks, what they wait for and its shape."""
    rows = [(rank_text(ranks), *row) for ranks, *row in sides]
    width = max(len(row[0]) for row in rows)
    return "".join(f"\n    {who:<{width}}  {what}  {shape}" for who, what, shape in rows)


def _shape_text(operation: Operation) -> str:
    row = operation.properties()
    return f"({row['dtype']} {row['shape']})" if row["dtype"] else ""
