"""Trains on workers that never wait, twice: asynchronous SGD, and with delay compensation.

    mydistrun -np 4 --servers 1 python examples/train_async.py --plot async.png

Rank r needs r + 1 times as long for a step as rank 0, and no rank waits for another one. So the
server gets gradients of parameters that others have changed since. At a high learning rate that
hurts asynchronous SGD; DC-ASGD repairs part of it (Zheng et al., arXiv:1609.08326). What a table on
a server needs is marked (1) to (5).
"""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from comparison import add_plot_argument, check_plot, two_diagrams
from fashion_mnist import DATA, load
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import mydist as md

# A result is the mean of so many points at the end of a curve: a constant rate makes noise.
LAST_POINTS = 10


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the four IDX files")
    parser.add_argument("--pushes", type=int, default=1500, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--warmup", type=int, default=50, help="pushes of rank 0 that raise the lr")
    parser.add_argument("--lam", type=float, default=2.0, help="how much DC-ASGD compensates")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--pause", type=float, default=4.0, help="milliseconds of rank 0's step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train-images", type=int, default=6000, help="use only the first N")
    parser.add_argument("--test-images", type=int, default=2000, help="use only the first N")
    add_plot_argument(parser)
    return parser.parse_args()


@dataclass
class Curve:
    """How good the parameters on the server were, by the pushes of rank 0."""

    name: str
    pushes: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    def result(self) -> tuple[float, float]:
        """Loss and accuracy at the end."""
        losses, accuracies = self.losses[-LAST_POINTS:], self.accuracies[-LAST_POINTS:]
        return sum(losses) / len(losses), sum(accuracies) / len(accuracies)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def own_pushes(all_pushes: int) -> int:
    """This rank's part of the pushes, by its speed, so that all ranks end together."""
    speeds = [1 / (rank + 1) for rank in range(md.size())]
    return round(all_pushes * speeds[md.rank()] / sum(speeds))


def train(name: str, rule: md.ps.Rule, train_data, test_data, arguments) -> Curve:
    torch.manual_seed(arguments.seed)
    model = make_model()
    # (1) The server holds all parameters as one vector, and begins with those of rank 0.
    start = parameters_to_vector(model.parameters()).detach()
    first = rule.changed(lr=rule.lr / arguments.warmup)
    table = md.ps.Table(name, like=start, rule=first, consistency=md.ps.Async())
    images, labels = train_data
    order = torch.Generator().manual_seed(arguments.seed + md.rank())
    steps, kept = own_pushes(arguments.pushes), []
    for step in range(1, steps + 1):
        if md.rank() == 0 and step <= arguments.warmup:
            # (2) One worker changes options for all: delays hurt most while gradients are large.
            table.set_options(lr=rule.lr * step / arguments.warmup)
        time.sleep(arguments.pause / 1000 * (md.rank() + 1))  # Stands for a slow processor.
        batch = torch.randint(len(labels), (arguments.batch_size,), generator=order)
        model.zero_grad()
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        gradient = parameters_to_vector([p.grad for p in model.parameters()])
        # (3) The server applies it and tells what it has now; no other rank is waited for.
        parameters = table.push_pull(gradient)
        vector_to_parameters(parameters, model.parameters())
        kept.append((step, parameters))
    table.finish()  # (4) This worker pushes no more.
    md.barrier()
    delay = md.allreduce(torch.tensor(table.stats()["mean_staleness"])).item()
    table.close()  # (5) The servers free it.
    # Only rank 0 judges, after the training: no rank is slower for it.
    curve = Curve(name)
    every = max(1, steps // 30)
    for step, parameters in kept[every - 1 :: every] if md.rank() == 0 else []:
        vector_to_parameters(parameters, model.parameters())
        loss, accuracy = judge(model, *test_data)
        curve.pushes.append(step)
        curve.losses.append(loss)
        curve.accuracies.append(accuracy)
    if md.rank() == 0:
        loss, accuracy = curve.result()
        print(
            f"{name}: test loss {loss:.4f}, accuracy {accuracy:.4f}, with {delay:.1f} updates by "
            "others between pull and push"
        )
    return curve


@torch.no_grad()
def judge(model: nn.Module, images, labels) -> tuple[float, float]:
    """Loss and accuracy on the test images."""
    scores = model(images)
    is_right = scores.argmax(dim=1) == labels
    return functional.cross_entropy(scores, labels).item(), is_right.float().mean().item()


def plot(curves: list[Curve], file: Path) -> None:
    """The losses on the left and the accuracies on the right."""
    with two_diagrams(file) as (left, right):
        for curve in curves:
            left.plot(curve.pushes, curve.losses, marker="o", markersize=4, label=curve.name)
            right.plot(curve.pushes, curve.accuracies, marker="o", markersize=4)
        left.set(title="test loss", xlabel="pushes of rank 0")
        right.set(title="test accuracy", xlabel="pushes of rank 0")


def main() -> None:
    arguments = parse_arguments()
    md.init()
    check_plot(arguments.plot)
    images, labels = load(arguments.data, "train")
    train_data = images[: arguments.train_images], labels[: arguments.train_images]
    images, labels = load(arguments.data, "t10k")
    test_data = images[: arguments.test_images], labels[: arguments.test_images]
    plain = md.ps.SGD(lr=arguments.lr)
    compensated = md.ps.DCASGD(lr=arguments.lr, lam=arguments.lam, adaptive=True)
    curves = [
        train("ASGD", plain, train_data, test_data, arguments),
        train("DC-ASGD", compensated, train_data, test_data, arguments),
    ]
    if md.rank() == 0:
        (loss, accuracy), (lower, higher) = (curve.result() for curve in curves)
        print(f"DC-ASGD changes the loss by {lower - loss:+.4f}, the accuracy by", end=" ")
        print(f"{higher - accuracy:+.4f}")
        if arguments.plot is not None:
            plot(curves, arguments.plot)
            print(f"see {arguments.plot}")
    md.shutdown()


if __name__ == "__main__":
    main()
