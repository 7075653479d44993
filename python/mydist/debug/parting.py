"""Where ranks that wait for each other set part, and which of them left the order of before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mydist.debug.dumps import Dump, Operation
from mydist.debug.rank_text import rank_text

MOST_SIDES = 4  # In a sentence.

Call = tuple[str, str]  # An operation and its name.


@dataclass(frozen=True)
class Side:
    """Ranks that have submitted the same collective after the same other one."""

    ranks: list[int]
    first: Operation  # The first one that other ranks miss.
    more_count: int  # How many more that other ranks miss; of the first rank.
    before: Operation | None  # What the ranks submitted before; None: no record tells.


class Parting:
    """Of the ranks of a process set: what each has submitted, and what others miss of it."""

    def __init__(
        self, dumps: Mapping[int, Dump], process_set: int, missed: Mapping[int, Sequence[Operation]]
    ) -> None:
        self._set = process_set
        self._submitted = {rank: _collectives(dumps[rank], process_set) for rank in sorted(missed)}
        grouped: dict[object, Side] = {}
        for rank, operations in sorted(missed.items()):
            first = min(operations, key=lambda operation: operation.number)
            before = [o for o in self._submitted[rank] if o.number < first.number][-1:]
            alike = (_call(first), *((_call(o), o.run) for o in before))
            side = Side([], first, len(operations) - 1, before[0] if before else None)
            grouped.setdefault(alike, side).ranks.append(rank)
        self.sides = list(grouped.values())

    def text(self) -> str:
        """Sentences; empty where the records do not tell what came before."""
        if all(side.before is None for side in self.sides):
            return ""
        places = {self._place(side) for side in self.sides}
        told = [
            f"{rank_text(side.ranks)}{' submitted' if side is self.sides[0] else ''} "
            f"{side.first.label}{self._place(side) if len(places) > 1 else ''}"
            for side in self.sides[:MOST_SIDES]
        ]
        if rest := [rank for side in self.sides[MOST_SIDES:] for rank in side.ranks]:
            told.append(f"{rank_text(rest)} others")
        text = f"{', '.join(told[:-1])}, and {told[-1]}."
        if len(places) == 1:
            text = f"{places.pop().lstrip()} {text}"
        shared = "" if len(places) > 1 else "there"
        return f"{text[0].upper()}{text[1:]}{''.join(self._earlier(shared))}"

    def _place(self, side: Side) -> str:
        if side.before is None:
            return ""
        number = f" (the {_ordinal(side.before.run)} collective)" if side.before.run else ""
        return f" after {side.before.label}{number}"

    def _earlier(self, there: str) -> list[str]:
        """Which collective came there in earlier steps, and which ranks now submit another one."""
        found = []
        for side in self.sides:
            if side.before is None:
                continue
            how: dict[str, list[int]] = {}
            for rank, submitted in self._submitted.items():
                if rank not in side.ranks and not _has_open(submitted, side.first):
                    how.setdefault(_deviation(submitted, side.before, side.first), []).append(rank)
            how.pop("", None)
            if how:
                told = " and ".join(
                    f"{rank_text(ranks)} {'has' if len(ranks) == 1 else 'have'} {deviation}"
                    for deviation, ranks in how.items()
                )
                where = there or f"after '{side.before.name}'"
                found.append(f" In earlier steps '{side.first.name}' came {where}: {told}.")
        return found


def _collectives(dump: Dump, process_set: int) -> list[Operation]:
    """In the order of their submission; no transfers, nor what the ranks have refused."""
    found = [o for o in dump.operations if o.process_set == process_set and not o.ranks]
    found = [o for o in found if o.op != "join" and not o.is_refused]
    return sorted(found, key=lambda operation: operation.number)


def _call(operation: Operation) -> Call:
    return (operation.op, operation.name)


def _has_open(submitted: Sequence[Operation], wanted: Operation) -> bool:
    return any(o.is_open and _call(o) == _call(wanted) for o in submitted)


def _deviation(submitted: Sequence[Operation], before: Operation, wanted: Operation) -> str:
    """How the rank has left the order of earlier steps, in which `wanted` followed `before`.

    Empty: it has not, or its records do not show it.
    """
    calls = [_call(operation) for operation in submitted]
    places = [i for i, call in enumerate(calls[:-1]) if call == _call(before)]
    at = next((i for i in reversed(places) if submitted[i].run == before.run), None)
    if at is None:
        return ""
    now = calls[at + 1]
    earlier = [i + 1 for i in places if i < at]
    usual = [i for i in earlier if calls[i] == _call(wanted)]
    if len(usual) * 2 <= len(earlier) or any(calls[i] == now for i in earlier):
        return ""
    # Up to the next step. A rank that leaves a little out soon goes on with what follows; what
    # comes long after, or never came, is rather one call too many.
    step = calls[usual[-1] : next(i for i in places if i >= usual[-1]) + 1]
    if now in step and step.index(now) < max(2, len(step) // 2):
        return "skipped it"
    return "left this order"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
