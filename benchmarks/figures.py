"""The pictures of the pages: `python -m benchmarks.figures` measures, then draws docs/images.

`--draw-only` draws what an earlier run has left in build/bench/figures, `--diagrams` only what
needs no measuring. Colours and text are readable on a white and on a dark page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mydist.bench.results import Row, read_json

from .diagrams import draw_servers

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "build" / "bench" / "figures"
IMAGES = ROOT / "docs" / "images"
MODELS = ("resnet", "gpt")
SIZES = "8,64,512,4K,32K,256K,1M,4M,16M,64M"
_WIDTH = 6.4  # Inches. A phone shows it at half its size, and the text is still read.
_GREY = "#808080"  # Text and axes: 4:1 on white, 4.5:1 on the dark page.
_COLOURS = {
    "mydist": "#2f7ed8",
    "Open MPI": "#d9822b",
    "Gloo": "#2ca25f",
    "Horovod": "#c2416b",
    "memory bound": _GREY,
    "DDP over Gloo": "#2ca25f",
}
_NAMES = {
    "mydist-local": "mydist",
    "openmpi": "Open MPI",
    "torch-gloo": "Gloo",
    "horovod": "Horovod",
}
Spans = dict[str, tuple[float, float]]  # Phase → its begin and end (us).
_PHASES = {"ENQUEUE": "#b0b0b0", "NEGOTIATE": "#d9822b", "FUSE": "#8e6bbf", "ALLREDUCE": "#2f7ed8"}


def measure() -> None:
    """Runs the benchmarks with two ranks; a few minutes, on a machine with nothing else to do."""
    MEASURED.mkdir(parents=True, exist_ok=True)
    peers = ["--sizes", SIZES, "--peers", "openmpi,torch-gloo,horovod"]
    _bench("allreduce", *peers, name="allreduce")
    for model in MODELS:
        _bench(
            "step", "--model", model, "--steps", "30", "--peers", "horovod", name=f"step_{model}"
        )
    example = [str(ROOT / "examples" / "train_fashion_mnist.py")]
    example += ["--epochs", "1", "--train-images", "6000"]
    _run(*example, launch=("--timeline-filename", str(MEASURED / "timeline.json")))


def _bench(*words: str, name: str) -> None:
    _run("-m", "mydist.bench", *words, "--json", str(MEASURED / f"{name}.json"))


def _run(*words: str, launch: tuple[str, ...] = ()) -> None:
    """Runs a program in Python with two ranks."""
    launcher = [sys.executable, "-m", "mydist.launcher", "-np", "2", *launch]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, sys.executable, *words], check=True, cwd=ROOT, env=environment)


def set_style() -> None:
    """Of all pictures."""
    mpl.rcParams.update(
        {
            "svg.hashsalt": "mydist",  # The same figures give the same file.
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 11,
            "text.color": _GREY,
            "axes.edgecolor": _GREY,
            "axes.labelcolor": _GREY,
            "xtick.color": _GREY,
            "ytick.color": _GREY,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
        }
    )


def draw() -> None:
    """Draws the pictures of what was measured."""
    _save(draw_bandwidth(_rows("allreduce")), "allreduce")
    _save(draw_steps({model: _rows(f"step_{model}") for model in MODELS}), "step")
    events = json.loads((MEASURED / "timeline.json").read_text(encoding="utf-8"))
    _save(draw_timeline(events), "timeline")


def _rows(name: str) -> list[Row]:
    return read_json(MEASURED / f"{name}.json")


def _save(figure: Figure, name: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / f"{name}.svg", transparent=True, metadata={"Date": None})
    pyplot.close(figure)


def draw_bandwidth(rows: list[Row]) -> Figure:
    """Bus bandwidth (GB/s, at the median) against bytes of a rank, beside peers and the bound."""
    figure, axes = pyplot.subplots(figsize=(_WIDTH, 4), layout="constrained")
    lines: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        if not row.busbw_gbs:
            continue
        lines[_NAMES.get(row.impl, row.impl)].append((row.size_bytes, row.busbw_gbs))
        if row.impl.startswith("mydist") and row.efficiency:
            lines["memory bound"].append((row.size_bytes, row.busbw_gbs / row.efficiency))
    for name, points in lines.items():
        style = {"linestyle": "--"} if name == "memory bound" else {"marker": "o", "markersize": 4}
        axes.plot(*zip(*sorted(points), strict=True), label=name, color=_COLOURS[name], **style)
    axes.set(xscale="log", yscale="log", xlabel="bytes of each rank", ylabel="bus bandwidth, GB/s")
    sizes = [8, 512, 32 << 10, 1 << 20, 64 << 20]
    axes.set_xticks(sizes, ["8 B", "512 B", "32 KiB", "1 MiB", "64 MiB"])
    axes.set_xticks([], minor=True)  # Powers of ten, which no size is.
    axes.grid(color=_GREY, alpha=0.25)
    axes.legend()
    return figure


def draw_steps(rows: dict[str, list[Row]]) -> Figure:
    """Median time of a training step (ms): computing, and communication beyond it."""
    figure, axes = pyplot.subplots(figsize=(_WIDTH, 2.6), layout="constrained")
    labels, place = [], 0.0
    for model, measured in rows.items():
        by_name = {row.impl.partition("-")[0]: row.p50_us / 1000 for row in measured}
        compute = by_name["compute"]
        titles = {"horovod": "Horovod", "ddp": "DDP over Gloo", "mydist": "mydist"}
        for name, title in titles.items():
            if name not in by_name:  # Horovod may not be installed.
                continue
            exposed = by_name[name] - compute
            axes.barh(place, compute, color=_GREY, alpha=0.45)
            axes.barh(place, exposed, left=compute, color=_COLOURS[title])
            axes.annotate(
                f"{by_name[name]:.1f} ms, {exposed:.1f} exposed",
                (by_name[name], place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
            labels.append((place, f"{model}: {title}"))
            place += 1
        place += 0.5
    axes.set_yticks(*zip(*labels, strict=True))
    axes.set_xlabel("a training step, ms (grey: computing)")
    axes.set_xlim(right=1.8 * max(row.p50_us / 1000 for found in rows.values() for row in found))
    return figure


def draw_timeline(events: Iterable[dict[str, Any]]) -> Figure:
    """One step in the middle of a trace: a lane for each buffer of gradients on each rank."""
    spans = [e for e in events if e["ph"] == "X" and e["name"] in _PHASES]
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for span in spans:
        lanes[span["pid"], span["tid"]].append(span)
    begin, end = _window(spans)
    insides = [
        (rank, {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in own if begin <= e["ts"] < end})
        for (rank, _), own in lanes.items()
    ]
    rows = buffers([(rank, inside) for rank, inside in insides if set(inside) == set(_PHASES)])
    figure, axes = pyplot.subplots(figsize=(_WIDTH, 0.9 + 0.33 * len(rows)), layout="constrained")
    labels = []
    start = min(row["ENQUEUE"][0] for _, row in rows)
    for place, (rank, row) in enumerate(rows):
        number = sum(other == rank for other, _ in rows[: place + 1])
        labels.append(f"rank {rank}, buffer {number}")
        for phase, (first, last) in row.items():
            axes.barh(
                place, (last - first) / 1000, left=(first - start) / 1000, color=_PHASES[phase]
            )
    _finish_timeline(axes, labels)
    return figure


def buffers(gradients: list[tuple[int, Spans]]) -> list[tuple[int, Spans]]:
    """A rank's gradients that are reduced together, as one: they begin that within 50 us."""
    found: list[tuple[int, Spans]] = []
    begin = 0.0
    for rank, spans in sorted(gradients, key=lambda one: (one[0], one[1]["ALLREDUCE"])):
        before, begin = begin, spans["ALLREDUCE"][0]
        if found and found[-1][0] == rank and begin - before < 50:
            row = found[-1][1]
            row["ENQUEUE"] = (min(row["ENQUEUE"][0], spans["ENQUEUE"][0]), row["ENQUEUE"][1])
        else:
            found.append((rank, dict(spans)))
    return found


def _window(spans: list[dict[str, Any]]) -> tuple[float, float]:
    """Begin and end of the step in the middle: the longest pauses are those between steps."""
    times = sorted(span["ts"] for span in spans)
    lanes = Counter((e["pid"], e["tid"]) for e in spans if e["name"] == "ALLREDUCE")
    steps = Counter(lanes.values()).most_common(1)[0][0]
    starts = sorted(range(1, len(times)), key=lambda i: times[i - 1] - times[i])[: steps - 1]
    middle = len(times) // 2
    first = max(i for i in starts if i <= middle)
    return times[first], times[min(i for i in starts if i > middle)]


def _finish_timeline(axes: Axes, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("ms since the first gradient was ready")
    for phase, colour in _PHASES.items():
        axes.barh(0, 0, color=colour, label=phase.lower())
    axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1), handlelength=1, columnspacing=1)


def main() -> int:
    """Measures unless told not to, and draws."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--draw-only", action="store_true", help="draw what was measured before")
    parser.add_argument("--diagrams", action="store_true", help="draw what needs no measuring")
    options = parser.parse_args()
    set_style()
    _save(draw_servers(), "parameter_server")
    if not options.diagrams:
        if not options.draw_only:
            measure()
        draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
