"""The examples, cut short, as their docstrings say to start them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from multiproc.job import launch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


def lines_of(output: str) -> list[str]:
    """The output without the launcher's prefixes."""
    return [line.partition(">:")[2] or line for line in output.splitlines()]


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_allreduce(backend: str) -> None:
    outcome = launch(3, backend, str(EXAMPLES / "allreduce.py")).expect_success()
    said = {line for line in lines_of(outcome.output) if line.startswith("rank ")}
    assert said == {f"rank {r} of 3: gave {r + 1}, all together 6" for r in range(3)}


def test_fashion_mnist_learns_and_reports_on_rank_0_only() -> None:
    if not FASHION_MNIST.is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    arguments = ["--epochs", "1", "--train-images", "12000"]
    script = str(EXAMPLES / "train_fashion_mnist.py")
    output = launch(2, "gloo", script, *arguments, timeout=120).expect_success().output
    assert "[1]" not in output, "rank 1 is silent"
    assert re.search(r"epoch 1 \[#{30}\] 94/94 loss \d", output), "the bar fills up"
    found = re.search(
        r"test accuracy (0\.\d{4}) after 1 epochs on 2 ranks, \d+ images/s, timeline none", output
    )
    assert found, output
    assert float(found[1]) > 0.6, "a sixth of the demo's training is well beyond chance"


def test_fashion_mnist_without_data_says_where_to_get_it(tmp_path: Path) -> None:
    script = str(EXAMPLES / "train_fashion_mnist.py")
    outcome = launch(1, "gloo", script, "--data", str(tmp_path))
    assert outcome.code != 0
    assert "train-images-idx3-ubyte.gz is missing: install Debian's" in outcome.output


def test_gpt_learns() -> None:
    arguments = ["--steps", "40", "--width", "32", "--layers", "2", "--text-megabytes", "0.2"]
    script = str(EXAMPLES / "train_gpt.py")
    arguments += ["--compression", "bf16"]
    output = launch(2, "gloo", script, *arguments, timeout=120).expect_success().output
    losses = [float(loss) for loss in re.findall(r"step \d+: loss (\d+\.\d+)", output)]
    assert len(losses) == 2
    # ln 128 = 4.85 is what knowing nothing costs.
    assert losses[1] < losses[0] < 4.85
    assert re.search(r"after 40 steps on 2 ranks, \d+ characters/s", output)
