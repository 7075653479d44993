"""The examples, cut short, as their docstrings say to start them."""

from __future__ import annotations

import importlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from deep import deep

from multiproc.containers import need_namespaces
from multiproc.job import job_environment, launch, launcher_command, run

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
needs_fashion_mnist = pytest.mark.skipif(
    not FASHION_MNIST.is_dir(), reason="Debian's dataset-fashion-mnist is not installed"
)


def lines_of(output: str) -> list[str]:
    """The output without the launcher's prefixes."""
    return [line.partition(">:")[2] or line for line in output.splitlines()]


@pytest.mark.parametrize("backend", ["gloo", deep("mpi")])
def test_allreduce(backend: str) -> None:
    outcome = launch(3, backend, str(EXAMPLES / "allreduce.py")).expect_success()
    said = {line for line in lines_of(outcome.output) if line.startswith("rank ")}
    assert said == {f"rank {r} of 3: gave {r + 1}, all together 6" for r in range(3)}


@needs_fashion_mnist
def test_fashion_mnist_learns_and_reports_on_rank_0_only() -> None:
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


@needs_fashion_mnist
@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("gloo", []),
        deep("gloo", ["--use-adasum"]),
        deep(
            "mpi",
            ["--batches-per-allreduce", "2", "--batch-size", "32", "--clip", "5"]
            + ["--fp16-allreduce", "--gradient-predivide-factor", "2"],
        ),
    ],
    ids=["plain", "adasum", "everything else"],
)
def test_horovod_script_learns_and_the_ranks_end_equal(
    backend: str, options: list[str], tmp_path: Path
) -> None:
    saved = tmp_path / "model.pt"
    arguments = ["--no-cuda", "--epochs", "1", "--train-images", "6000", "--base-lr", "0.02"]
    arguments += ["--warmup-epochs", "0.5", "--save", str(saved), *options]
    script = str(EXAMPLES / "horovod_script.py")
    output = launch(2, backend, script, *arguments, timeout=120).expect_success().output
    found = re.search(r"test set: average loss (\d\.\d{4}), accuracy (0\.\d{4})", output)
    assert found, output
    assert float(found[1]) < 1.3, "ln 10 = 2.30 is what knowing nothing costs"
    assert float(found[2]) > 0.5, "a tenth is chance"
    checksums = dict(re.findall(r"rank (\d): parameters ([0-9a-f]{16})", output))
    assert checksums.keys() == {"0", "1"}
    assert checksums["0"] == checksums["1"]
    assert len(torch.load(saved, weights_only=True)) == 8


EPOCH = re.compile(r"epoch (\d+): step (\d+), validation loss (\d\.\d{6}), accuracy (0\.\d{4})")


def imagenet(folder: Path, *more: str) -> str:
    """The output of two epochs of eight steps, with what a real run would switch on."""
    arguments = ["--epochs", "2", "--train-images", "512", "--val-images", "101", "--sync-bn"]
    arguments += ["--batch-size", "16", "--accumulate", "2", "--checkpoints", str(folder), *more]
    script = str(EXAMPLES / "train_imagenet.py")
    return launch(2, "gloo", script, *arguments, timeout=120).expect_success().output


def test_imagenet_learns(tmp_path: Path) -> None:
    epochs = EPOCH.findall(imagenet(tmp_path))
    assert [epoch[:2] for epoch in epochs] == [("1", "8"), ("2", "16")]
    assert float(epochs[1][2]) < 1.95 < math.log(8), "ln 8 is what knowing nothing costs"


@pytest.mark.deep
def test_an_interrupted_imagenet_ends_the_same(tmp_path: Path) -> None:
    whole = EPOCH.findall(imagenet(tmp_path / "whole"))
    stopped = imagenet(tmp_path / "parts", "--stop-after", "11")
    assert "stopped after step 11" in stopped
    assert EPOCH.findall(stopped) == whole[:1]
    resumed = imagenet(tmp_path / "parts")
    assert "resumed at step 11, epoch 2" in resumed
    assert EPOCH.findall(resumed) == whole[1:], "to the last digit"
    files = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert files == ["step-000000011.pt", "step-000000016.pt"]


def test_imagenet_has_the_resnet_50_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_imagenet

    model = train_imagenet.make_model("resnet50", 1000)
    # He et al. 2015: 25.6 million.
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    with torch.no_grad():
        assert model.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_gan_finds_the_clusters() -> None:
    script = str(EXAMPLES / "train_gan.py")
    output = launch(2, "gloo", script, "--steps", "400").expect_success().output
    losses = re.findall(r"step \d+: discriminator (\S+), generator (\S+)", output)
    assert len(losses) == 5
    assert all(0 < float(loss) < 5 for pair in losses for loss in pair)
    found = re.search(r"(\d+\.\d)% of the points are near a cluster, (\d) of 8 clusters", output)
    assert found, output
    # Points around the origin, where the generator starts, are near none.
    assert float(found[1]) > 10 and int(found[2]) >= 4
    assert "all ranks have the same parameters" in output


@pytest.mark.parametrize(
    ("script", "saved", "worst"),
    [
        pytest.param("train_local_sgd.py", 80, 0.5, marks=needs_fashion_mnist),
        ("train_diloco.py", 85, -4.0),  # ln 128 = 4.85 is what knowing nothing costs.
        pytest.param("federated.py", 75, 0.15, marks=needs_fashion_mnist),
    ],
)
def test_a_strategy_saves_bytes_and_still_learns(
    script: str, saved: float, worst: float, tmp_path: Path
) -> None:
    draws = find_spec("matplotlib") is not None
    plot = ["--plot", str(tmp_path / "plot.png")] if draws else []
    outcome = launch(2, "gloo", str(EXAMPLES / script), "--quick", *plot, timeout=120)
    said = "\n".join(lines_of(outcome.expect_success().output))
    traffic = re.search(r"sends (\S+) MB per rank instead of (\S+) MB: (\S+)% saved", said)
    score = re.search(r"(accuracy|loss) (\S+) instead of (\S+): ([+-]\S+)", said)
    assert traffic and score, said
    sent, usual, percent = map(float, traffic.groups())
    assert saved < percent < 100 and abs(percent - 100 * (1 - sent / usual)) < 1
    ours, theirs, difference = map(float, score.groups()[1:])
    assert abs(ours - theirs - difference) < 2e-4
    sign = 1 if score[1] == "accuracy" else -1
    assert sign * ours > worst and sign * theirs > worst
    if draws:
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@needs_fashion_mnist
def test_async_training_learns_and_delay_compensation_does_no_harm(tmp_path: Path) -> None:
    """Delays need several ranks. How much compensation gains differs from run to run."""
    draws = find_spec("matplotlib") is not None
    plot = ["--plot", str(tmp_path / "plot.png")] if draws else []
    arguments = ["--pushes", "700", "--pause", "2", *plot]
    command = [str(EXAMPLES / "train_async.py"), *arguments]
    output = run(launcher_command(4, "local", *command, flags=["--servers", "1"]), timeout=120)
    said = "\n".join(lines_of(output.expect_success().output))
    found = re.findall(r"(\S+): test loss (\S+), accuracy (\S+), with (\S+) updates", said)
    assert [name for name, *_ in found] == ["ASGD", "DC-ASGD"], said
    (loss, accuracy, delay), (compensated, _, _) = (map(float, rest) for _, *rest in found)
    assert loss < 1.6 and accuracy > 0.4, "ln 10 = 2.30 and a tenth are what knowing nothing gives"
    assert compensated < min(1.2, loss + 0.3)
    assert 1 < delay < 8, "three other ranks push in between"
    if draws:
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_embeddings_on_servers_learn() -> None:
    arguments = ["--steps", "250", "--seen", "300", "--batch-size", "512"]
    command = [str(EXAMPLES / "train_embedding.py"), *arguments]
    output = run(launcher_command(2, "local", *command, flags=["--servers", "1"]), timeout=120)
    said = "\n".join(lines_of(output.expect_success().output))
    losses = [float(loss) for loss in re.findall(r"step \d+: loss (\S+)", said)]
    found = re.search(r"test loss (\S+) \(at best (\S+)\), accuracy (0\.\d+)", said)
    assert found and len(losses) == 4, said
    loss, least, accuracy = map(float, found.groups())
    # ln 2 = 0.69 is what knowing nothing costs.
    assert 0.3 < least < loss < least + 0.08 and loss < losses[0] and accuracy > 0.78
    assert "at most 600 of 10,000,000 rows are touched: 0.08 MB on the servers" in said


WAY = re.compile(
    r"(\w+): a step takes (\S+) ms \(\d+% of none\) and sends (\S+) MB; test accuracy (0\.\d+)"
)


@needs_fashion_mnist
def test_on_a_slow_network_int8_is_faster_and_both_learn(tmp_path: Path) -> None:
    need_namespaces()
    if shutil.which("tc") is None:
        pytest.skip("tc is not installed")
    draws = find_spec("matplotlib") is not None
    plot = ["--plot", str(tmp_path / "plot.png")] if draws else []
    arguments = ["--speed", "50mbit", "--ways", "none,int8", "--epochs", "1", *plot]
    arguments += ["--train-images", "3000"]
    command = [sys.executable, str(EXAMPLES / "slow_network.py"), *arguments]
    said = run(command, timeout=180).expect_success().output
    ways = {way: tuple(map(float, figures)) for way, *figures in WAY.findall(said)}
    assert list(ways) == ["none", "int8"], said
    (plain_ms, plain_mb, plain_accuracy), (ms, mb, accuracy) = ways.values()
    # 2.7 MB at 50 Mbit/s take 430 ms, a quarter of it 107.
    assert plain_ms > 400 and ms < plain_ms, said
    assert 0.2 * plain_mb < mb < 0.3 * plain_mb
    assert min(plain_accuracy, accuracy) > 0.5, "a tenth is chance"
    if draws:
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def on_torch_distributed(launcher: str, np: int, script: str, *arguments: str) -> str:
    """The output of an example of torch.distributed, without the launcher's prefixes."""
    command = [str(EXAMPLES / script), *arguments]
    if launcher == "torchrun":
        module = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={np}"]
        command = [sys.executable, *module, *command]
    else:
        command = launcher_command(np, "local", *command)
    return "\n".join(lines_of(run(command, timeout=180).expect_success().output))


LAUNCHERS = pytest.mark.parametrize("launcher", ["mydistrun", deep("torchrun")])


@needs_fashion_mnist
@LAUNCHERS
@pytest.mark.parametrize("backend", ["mydist", deep("gloo")])
def test_ddp_learns(launcher: str, backend: str) -> None:
    arguments = ["--epochs", "1", "--train-images", "6000", "--backend", backend]
    output = on_torch_distributed(launcher, 2, "train_ddp.py", *arguments)
    assert f"on 2 ranks over {backend}" in output
    (loss,) = re.findall(r"epoch 1: mean loss (\d\.\d+)", output)
    (accuracy,) = re.findall(r"test accuracy (0\.\d+)", output)
    assert float(loss) < 1.3, "ln 10 = 2.30 is what knowing nothing costs"
    assert float(accuracy) > 0.7, "a tenth is chance"


@LAUNCHERS
def test_fsdp_learns_and_goes_on_with_another_number_of_ranks(
    launcher: str, tmp_path: Path
) -> None:
    def part(ranks: int, *more: str) -> tuple[list[float], str]:
        arguments = ["--width", "32", "--layers", "2", "--text-megabytes", "0.2", *more]
        arguments += ["--checkpoint", str(tmp_path)]
        output = on_torch_distributed(launcher, ranks, "train_fsdp.py", *arguments)
        kept = re.findall(rf"rank \d of {ranks} keeps (\d+) of (\d+) parameters", output)
        assert len(kept) == ranks
        assert sum(int(here) for here, _ in kept) == int(kept[0][1])
        return [float(loss) for loss in re.findall(r"step \d+: loss (\d+\.\d+)", output)], output

    losses, _ = part(2, "--steps", "40")
    # ln 128 = 4.85 is what knowing nothing costs.
    assert len(losses) == 2 and losses[1] < losses[0] < 4.85
    more, output = part(3, "--steps", "20", "--bf16")
    assert "goes on after step 40" in output and "step 60: loss" in output
    assert more[0] < losses[1]


def test_zero_learns_and_goes_on_in_another_stage_with_another_number_of_ranks(
    tmp_path: Path,
) -> None:
    def part(ranks: int, *more: str) -> tuple[list[float], str]:
        arguments = ["--width", "32", "--layers", "2", "--text-megabytes", "0.2", *more]
        arguments += ["--checkpoint", str(tmp_path)]
        script = str(EXAMPLES / "train_zero.py")
        output = launch(ranks, "local", script, *arguments, timeout=120).expect_success().output
        kept = re.findall(rf"rank \d of {ranks} keeps (\d\.\d+) MB of state", output)
        assert len(kept) == ranks
        assert math.isclose(sum(map(float, kept)), 0.27, abs_tol=0.02), "8 bytes a parameter"
        return [float(loss) for loss in re.findall(r"step \d+: loss (\d+\.\d+)", output)], output

    losses, _ = part(2, "--steps", "40", "--stage", "2")
    # ln 128 = 4.85 is what knowing nothing costs.
    assert len(losses) == 2 and losses[1] < losses[0] < 4.85
    more, output = part(3, "--steps", "20", "--stage", "1")
    assert "goes on after step 40" in output and "step 60: loss" in output
    assert more[0] < losses[1]


@LAUNCHERS
@pytest.mark.parametrize(("ranks", "split", "part"), [(2, 2, "(16, 32)"), deep(4, 2, "(8, 32)")])
def test_tensor_parallel_learns(launcher: str, ranks: int, split: int, part: str) -> None:
    arguments = ["--steps", "40", "--width", "32", "--text-megabytes", "0.2", "--lr", "0.003"]
    arguments += ["--tensor-parallel", str(split)]
    output = on_torch_distributed(launcher, ranks, "tensor_parallel.py", *arguments)
    losses = [float(loss) for loss in re.findall(r"step \d+: loss (\d+\.\d+)", output)]
    assert len(losses) == 2 and losses[1] < losses[0] < 4.85
    assert output.count(f"keeps {part} of a weight of (32, 32)") == ranks


def test_a_plot_without_matplotlib_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    comparison = importlib.import_module("comparison")
    monkeypatch.setattr(comparison, "find_spec", lambda name: None)
    monkeypatch.setattr(comparison.md, "rank", lambda: 0)
    comparison.check_plot(None)
    with pytest.raises(SystemExit, match="--plot needs Matplotlib: pip install matplotlib"):
        comparison.check_plot(Path("plot.png"))


def test_an_elastic_job_is_killed_and_grown(tmp_path: Path) -> None:
    """One rank of the hosts that the script prints, then three; then one of them is killed."""
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("localhost:1\n")
    script = str(EXAMPLES / "train_elastic.py")
    flags = ["--min-np", "1", "--max-np", "3", "--host-discovery-script", f"cat {hosts}"]
    flags += ["--blacklist-cooldown-range", "100"]
    arguments = ["--samples", "600", "--epochs", "1000", "--pause", "0.01"]
    command = [sys.executable, "-m", "mydist.launcher", *flags, sys.executable, script, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=job_environment(), text=True
    ) as job:
        assert job.stdout is not None

        def wait_for(pattern: str) -> re.Match[str]:
            assert job.stdout is not None
            found = (re.search(pattern, line) for line in job.stdout)
            return next(match for match in found if match)

        try:
            wait_for("epoch 1 on 1 ranks: loss")
            hosts.write_text("localhost:3\n")
            victim = wait_for(r"rank 0 of 3 \(pid (\d+)\)")
            wait_for("epoch .* on 3 ranks: loss")
            os.kill(int(victim[1]), signal.SIGKILL)
            wait_for("epoch .* on 2 ranks: loss")
        finally:
            job.terminate()
    assert job.returncode == 143
