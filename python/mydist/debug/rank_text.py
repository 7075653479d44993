"""How a text names ranks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby


def rank_text(ranks: Iterable[int]) -> str:
    """As the core names ranks: "rank 3", "ranks 0-2, 5"."""
    listed = sorted(ranks)
    runs = []
    for _, group in groupby(enumerate(listed), lambda item: item[1] - item[0]):
        run = [rank for _, rank in group]
        if len(run) > 2:
            runs.append(f"{run[0]}-{run[-1]}")
        else:
            runs += [str(rank) for rank in run]
    return f"rank{'s' if len(listed) != 1 else ''} {', '.join(runs)}"
