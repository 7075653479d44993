"""What the examples of strategies share: curves of two ways to train, compared and plotted."""

import argparse
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import mydist as md


@dataclass
class Curve:
    """How a model became better and what a rank sent for it, by the number of `unit`."""

    name: str
    score: str  # What is measured.
    unit: str = "steps"
    counts: list[int] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def add(self, count: int, sent: int, score: float) -> None:
        """`sent` bytes more have brought the model to this score; rank 0 prints it."""
        self.counts.append(count)
        self.megabytes.append(sent / 1e6 + (self.megabytes[-1] if self.megabytes else 0.0))
        self.scores.append(score)
        if md.rank() == 0:
            print(f"{self.name}: {self.score} {score:.4f} after {count} {self.unit}")


def bytes_sent() -> int:
    """What this rank has given to collectives since init()."""
    return md.stats()["tensor_bytes"]


def add_plot_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw both runs to this file")


def check_plot(file: Path | None) -> None:
    """Ends the program on all ranks, before it trains in vain, if there is no Matplotlib."""
    if file is not None and find_spec("matplotlib") is None:
        sys.exit("--plot needs Matplotlib: pip install matplotlib" if md.rank() == 0 else 1)


def compare(plain: Curve, other: Curve, file: Path | None) -> None:
    """Rank 0 says what `other` saves and costs against `plain`, and draws both if asked to."""
    if md.rank() > 0:
        return
    saved = 1 - other.megabytes[-1] / plain.megabytes[-1]
    change = other.scores[-1] - plain.scores[-1]
    print(
        f"{other.name} sends {other.megabytes[-1]:.2f} MB per rank instead of "
        f"{plain.megabytes[-1]:.2f} MB: {saved:.1%} saved"
    )
    print(f"{other.score} {other.scores[-1]:.4f} instead of {plain.scores[-1]:.4f}: {change:+.4f}")
    if file is not None:
        plot([plain, other], file)
        print(f"see {file}")


def plot(curves: list[Curve], file: Path) -> None:
    """The scores on the left and the bytes on the right."""
    with two_diagrams(file) as (left, right):
        for curve in curves:
            left.plot(curve.counts, curve.scores, marker="o", markersize=4, label=curve.name)
            right.plot(curve.counts, curve.megabytes, marker="o", markersize=4)
            end = curve.counts[-1], curve.megabytes[-1]
            right.annotate(f"{end[1]:.1f}", end, (-6, 4), textcoords="offset points", ha="right")
        left.set(title=curves[0].score, xlabel=curves[0].unit)
        right.set(title="megabytes sent per rank", xlabel=curves[0].unit, ylim=(0, None))


@contextmanager
def two_diagrams(file: Path):
    """Their axes, side by side: draw on them; then they are written to the file."""
    import matplotlib

    matplotlib.use("Agg")  # Draws without a screen.
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    yield left, right
    for axes in (left, right):
        axes.margins(y=0.1)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    figure.savefig(file, dpi=150)
