"""What the ranks themselves have said, or were told, of a failure or a stall."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mydist.debug.dumps import MAX_SIZE
from mydist.debug.rank_text import rank_text

_ENDED = "an exception ended its program"
# A stall warning, which the ranks get that are waited for, too: csrc/controller/messages.
_READY = re.compile(r"(ranks? [\d, -]+)(?: and \d+ more)?\.", re.ASCII)
_AWAITED = re.compile(
    r" waits? for (ranks? [\d, -]+)(?: and \d+ more)?(?: \(hosts? [^()]*\))? for \S+ s\Z", re.ASCII
)
_RUN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def told_lines(said: Mapping[str, Sequence[int]]) -> list[str]:
    """A line or two for each message, of the ranks that have it."""
    lines = []
    for message, ranks in said.items():
        call, awaited, waiting = _stall(message)
        if told := [rank for rank in ranks if rank in awaited]:
            whom = rank_text(awaited)
            if told == awaited:
                whom = "it" if len(told) == 1 else "them"
            waits = f"{waiting} {'wait' if waiting.startswith('ranks') else 'waits'}"
            was = "was" if len(told) == 1 else "were"
            lines.append(
                f"{rank_text(told).capitalize()} {was} told that {waits} for {whom} in {call}."
            )
        if own := [rank for rank in ranks if rank not in awaited]:
            is_end_of_several = message == _ENDED and len(own) > 1
            text = "exceptions ended their programs" if is_end_of_several else message
            lines.append(f"{rank_text(own).capitalize()} said: {text}")
    return lines


def _stall(message: str) -> tuple[str, list[int], str]:
    """The call, the ranks that it waits for, and those that wait; no ranks: no stall warning."""
    head, _, tail = message.partition("; ready on ")
    ready = _READY.match(tail)
    awaited = _AWAITED.search(head)
    if ready is None or awaited is None:
        return "", [], ""
    call, more, _ = head[: awaited.start()].partition(" more tensor")
    return call + more.removesuffix(" tensor"), _listed(awaited[1]), ready[1]


def _listed(text: str) -> list[int]:
    """Of "ranks 0, 2-5"; none where it is no list."""
    found: list[int] = []
    for run in text.removeprefix("rank").removeprefix("s").split(","):
        ends = _RUN.fullmatch(run.strip())
        if ends is None or len(found) > MAX_SIZE:
            return []
        found += range(int(ends[1]), min(int(ends[2] or ends[1]), MAX_SIZE) + 1)
    return found
