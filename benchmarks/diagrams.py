"""Pictures that show how something works; nothing is measured for them. See figures.py."""

from __future__ import annotations

import math
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

_GREY = "#808080"  # As in figures.py: readable on white and on dark pages.
_SERVERS = ("#2f7ed8", "#d9822b")
# Where on the ring, in degrees clockwise from the top, servers stand several times, and pieces lie.
_PLACES = ((20, 0), (75, 1), (130, 0), (190, 1), (235, 0), (315, 1))
_PIECES = (45, 100, 5, 290, 160, 215)
_WORKERS, _RING, _RADIUS = 3, (8.15, 2.35), 1.35


def draw_servers() -> Figure:
    """Workers push to servers and pull from them; the ring says which server has which piece."""
    figure, axes = pyplot.subplots(figsize=(6.4, 3.4), layout="constrained")
    axes.set(xlim=(-0.75, 10), ylim=(0, 5.1), aspect="equal")
    axes.axis("off")
    workers = [(0.95 + 1.9 * number, 4.45) for number in range(_WORKERS)]
    servers = [(1.5, 0.5), (4.2, 0.5)]
    for place in workers:
        for server in servers:
            _arrow(axes, place, server)
    for number, place in enumerate(workers):
        _box(axes, place, (1.6, 0.7), _GREY)
        axes.text(*place, f"worker {number}", ha="center", va="center")
    for number, (across, up) in enumerate(servers):
        _box(axes, (across, up), (2.3, 0.9), _SERVERS[number])
        axes.text(across, up + 0.22, f"server {number}", ha="center", va="center")
        held = [piece for piece, angle in enumerate(_PIECES) if _owner(angle) == number]
        for index, piece in enumerate(held):
            _piece(axes, (across + 0.45 * (index - (len(held) - 1) / 2), up - 0.18), piece, number)
    words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 10}
    axes.text(-0.75, 2.5, "↓ push\ngradients", **{**words, "ha": "left"})
    axes.text(5.75, 2.5, "↑ pull\nvalues", **{**words, "ha": "right"})
    _ring(axes)
    axes.text(_RING[0], 4.45, "which server has\nwhich piece", **words)
    axes.text(_RING[0], 0.4, "clockwise, the\nnext server", **words)
    return figure


def _owner(angle: float) -> int:
    """The next server clockwise."""
    return min(_PLACES, key=lambda place: (place[0] - angle) % 360)[1]


def _on_ring(angle: float, radius: float = _RADIUS) -> tuple[float, float]:
    turn = math.radians(angle)
    return _RING[0] + radius * math.sin(turn), _RING[1] + radius * math.cos(turn)


def _ring(axes: Axes) -> None:
    circle = [_on_ring(angle) for angle in range(0, 361, 4)]
    axes.plot(*zip(*circle, strict=True), color=_GREY, linewidth=1)
    for angle, server in _PLACES:
        axes.plot(*_on_ring(angle), marker="s", markersize=9, color=_SERVERS[server])
    for piece, angle in enumerate(_PIECES):
        _piece(axes, _on_ring(angle), piece, _owner(angle))


def _piece(axes: Axes, place: tuple[float, float], number: int, server: int) -> None:
    axes.plot(*place, marker="o", markersize=13, color=_SERVERS[server])
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "color": "white"}
    axes.text(place[0], place[1] - 0.02, str(number), **style)


def _box(axes: Axes, centre: tuple[float, float], size: tuple[float, float], colour: str) -> None:
    corner = (centre[0] - size[0] / 2, centre[1] - size[1] / 2)
    axes.add_patch(
        FancyBboxPatch(
            corner, *size, boxstyle="round,pad=0,rounding_size=0.12", edgecolor=colour, fill=False
        )
    )


def _arrow(axes: Axes, above: tuple[float, float], below: tuple[float, float]) -> None:
    style = {"arrowstyle": "<->", "color": _GREY, "linewidth": 0.9, "shrinkA": 1, "shrinkB": 1}
    ends = (above[0], above[1] - 0.35), (below[0] + 0.25 * (above[0] - 2.85) / 1.9, below[1] + 0.45)
    axes.annotate("", xy=ends[1], xytext=ends[0], arrowprops=style)
