"""Trains over a slow network, once with each way to compress gradients, and compares them.

    python examples/slow_network.py --speed 100mbit --plot slow_network.svg

Two ranks have a network namespace each, as if they were two hosts. The cable between them has a
limited speed. No cable of the machine is touched, and the namespaces end with the program. It needs
root, or a kernel that lets users make namespaces, and Debian's iproute2.

Each way starts with the same model and sees the same images. The end of the output has step times,
bytes sent and accuracies side by side.
"""

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from comparison import add_plot_argument, check_plot, two_diagrams
from fashion_mnist import DATA, load
from torch import nn
from torch.nn import functional

import mydist as md

# In this order, if this version of mydist has them.
WAYS = ("none", "fp16", "int8", "onebit", "topk", "powersgd")
ADDRESSES = ("10.99.0.1", "10.99.0.2")
WARM_UP_STEPS = 3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", default="100mbit", help="of the cable, as tc(8) writes it")
    parser.add_argument("--ways", help=f"of md.Compression, by default {','.join(WAYS)}")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the four IDX files")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--width", type=int, default=512, help="of the two hidden layers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train-images", type=int, default=12000, help="use only the first N")
    parser.add_argument("--test-images", type=int, default=2000, help="use only the first N")
    add_plot_argument(parser)
    arguments = parser.parse_args()
    chosen = arguments.ways.split(",") if arguments.ways else WAYS
    arguments.ways = [way for way in chosen if hasattr(md.Compression, way)]
    missing = set(chosen) - set(arguments.ways)
    if arguments.ways == [] or (missing and list(chosen) != list(WAYS)):
        parser.error(f"md.Compression has no {', '.join(sorted(missing))}")
    return arguments


# The two hosts.


def enter_namespaces() -> None:
    """Starts this program once more, in namespaces of its own. Does not return."""
    for program in ("unshare", "ip", "tc"):
        if shutil.which(program) is None:
            sys.exit(f"slow_network.py needs {program}: install Debian's util-linux and iproute2")
    command = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        sys.exit(
            "slow_network.py makes network namespaces, which this system refuses to this user: "
            f"{tried.stderr.strip()}. Start it as root, outside a container"
        )
    os.environ["SLOW_NETWORK"] = "made"
    os.execvp(command[0], [*command, sys.executable, *sys.argv])


def make_cable(speed: str) -> None:
    """Between this namespace and a second one, called "other"."""
    cable = f"""
        mount -t tmpfs tmpfs /run
        ip netns add other
        ip link add slow0 type veth peer name slow0 netns other
        ip address add {ADDRESSES[0]}/24 dev slow0
        ip -netns other address add {ADDRESSES[1]}/24 dev slow0
    """
    for host in ("", "-netns other "):
        cable += f"""
        ip {host}link set lo up
        ip {host}link set slow0 up
        tc {host}qdisc add dev slow0 root tbf rate {speed} burst 256kb latency 100ms
        """
    for line in filter(None, map(str.strip, cable.splitlines())):
        done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"slow_network.py: `{line}` failed: {done.stderr.strip()}")


def start_ranks() -> int:
    """One on each host, as any launcher does; the exit code of the first that fails."""
    ranks = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that the ranks end, too.
    for rank in range(2):
        own = {"RANK": str(rank), "WORLD_SIZE": "2", "MYDIST_HOST_ID": f"host{rank}"}
        own |= {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}
        own |= {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch looks for names of the addresses in vain.
        command = [sys.executable, *sys.argv]
        if rank == 1:
            command = ["ip", "netns", "exec", "other", *command]
        ranks.append(subprocess.Popen(command, env=os.environ | own))
    try:
        codes = [rank.wait() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return next((code for code in codes if code != 0), 0)


# The training.


@dataclass
class Run:
    """How the model became better with one way to compress."""

    way: str
    seconds: list[float] = field(default_factory=list)  # Of training, at the end of each epoch.
    accuracies: list[float] = field(default_factory=list)
    step_ms: float = 0.0  # The median.
    megabytes: float = 0.0  # That a host sends per step.


def make_model(width: int) -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(way: str, arguments: argparse.Namespace, train_data, test_data) -> Run:
    torch.manual_seed(arguments.seed)
    model = make_model(arguments.width)
    compression = getattr(md.Compression, way)
    if way not in ("none", "fp16", "bf16"):
        compression = compression()  # A codec with the arguments that it has by default.
    momentum = 0.0 if way == "dgc" else 0.9  # That codec has a momentum inside.
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=momentum),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    images, labels = (values[md.rank() :: md.size()] for values in train_data)
    run, times = Run(way), []
    sent_before = md.stats()["inter_host_bytes_sent"]
    for _ in range(arguments.epochs):
        order = torch.randperm(len(labels))
        for batch in order.split(arguments.batch_size)[: len(order) // arguments.batch_size]:
            begin = time.perf_counter()
            optimizer.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            times.append(time.perf_counter() - begin)
        run.seconds.append(sum(times))
        with torch.no_grad():
            right = model(test_data[0]).argmax(1) == test_data[1]
        run.accuracies.append(right.double().mean().item())
    run.step_ms = 1e3 * statistics.median(times[WARM_UP_STEPS:])
    sent = md.stats()["inter_host_bytes_sent"] - sent_before
    run.megabytes = sent / 1e6 / len(times)
    return run


def tell(run: Run, plain: Run) -> None:
    print(
        f"{run.way}: a step takes {run.step_ms:.1f} ms ({run.step_ms / plain.step_ms:.0%} of none) "
        f"and sends {run.megabytes:.2f} MB; test accuracy {run.accuracies[-1]:.4f} after "
        f"{run.seconds[-1]:.1f} s",
        flush=True,
    )


def plot(runs: list[Run], speed: str, file: Path) -> None:
    """Accuracy by time on the left and step times on the right."""
    with two_diagrams(file) as (left, right):
        for run in runs:
            left.plot(run.seconds, run.accuracies, marker="o", markersize=4, label=run.way)
            bar = right.barh(run.way, run.step_ms)
            right.bar_label(bar, [f" {run.step_ms:.0f}"])
        left.set(title=f"test accuracy over a link of {speed}/s", xlabel="seconds of training")
        right.set(title="milliseconds per step")
        right.invert_yaxis()


def main() -> None:
    arguments = parse_arguments()
    if "RANK" not in os.environ:
        if os.environ.get("SLOW_NETWORK") != "made":
            enter_namespaces()
        make_cable(arguments.speed)
        sys.exit(start_ranks())
    md.init()
    check_plot(arguments.plot)
    images, labels = load(arguments.data, "train")
    train_data = images[: arguments.train_images], labels[: arguments.train_images]
    images, labels = load(arguments.data, "t10k")
    test_data = images[: arguments.test_images], labels[: arguments.test_images]
    runs: list[Run] = []
    for way in arguments.ways:
        runs.append(train(way, arguments, train_data, test_data))
        if md.rank() == 0:
            tell(runs[-1], runs[0])
    if md.rank() == 0 and arguments.plot is not None:
        plot(runs, arguments.speed, arguments.plot)
        print(f"see {arguments.plot}")
    md.shutdown()


if __name__ == "__main__":
    main()
