"""Draws how stale gradients were: `python -m mydist.ps.staleness timeline.json out.svg`.

A gradient is as stale as there were updates by other workers between this worker's read of the
parameters and the update with the gradient. Staleness is in the timeline of the job.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_STALENESS = re.compile(r"staleness ([0-9]+)")
_US_PER_SECOND = 1e6

# By worker: seconds since the first push of the job, and staleness, of each push.
Pushes = dict[int, list[tuple[float, int]]]


def read_pushes(path: Path) -> Pushes:
    """The pushes in a timeline, by rank. Raises ValueError for what is none, or has no push."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        events: list[dict[str, Any]] = told if isinstance(told, list) else told["traceEvents"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a timeline: {error}") from None
    pushes: Pushes = defaultdict(list)
    for event in events:
        found = _STALENESS.match(str(event.get("args", {}).get("detail", "")))
        if found and event.get("name") in ("PUSH", "PUSH_PULL"):
            pushes[int(event["pid"])].append((float(event["ts"]), int(found[1])))
    if not pushes:
        raise ValueError(f"{path} has no push to a table of the parameter server")
    begin = min(time for times in pushes.values() for time, _ in times)
    return {
        rank: [((time - begin) / _US_PER_SECOND, staleness) for time, staleness in times]
        for rank, times in sorted(pushes.items())
    }


def draw(pushes: Pushes, out: Path) -> None:
    """Writes the picture, whose kind the name's ending says: .svg, .png or .pdf."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (over_time, how_often) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for rank, points in pushes.items():
        over_time.plot(*zip(*points, strict=True), ".", label=f"rank {rank}", alpha=0.7)
    over_time.set(xlabel="seconds", ylabel="staleness (updates by others)")
    over_time.legend()
    counts = [[staleness for _, staleness in points] for points in pushes.values()]
    most = max(max(points) for points in counts)
    how_often.hist(counts, bins=[edge - 0.5 for edge in range(most + 2)], stacked=True)
    how_often.set(xlabel="staleness (updates by others)", ylabel="pushes")
    figure.savefig(out)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 for a file that is no timeline with pushes."""
    parser = argparse.ArgumentParser(prog="python -m mydist.ps.staleness", description=__doc__)
    parser.add_argument("timeline", type=Path, help="what --timeline-filename has written")
    parser.add_argument("out", type=Path, help="the picture: .svg, .png or .pdf")
    given = parser.parse_args(arguments)
    try:
        pushes = read_pushes(given.timeline)
        draw(pushes, given.out)
    except (OSError, ValueError) as error:
        print(f"mydist.ps.staleness: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError:
        print("mydist.ps.staleness: needs Matplotlib; pip install matplotlib", file=sys.stderr)
        return 2
    number = sum(map(len, pushes.values()))
    print(f"{given.out}: {number} pushes of {len(pushes)} workers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
