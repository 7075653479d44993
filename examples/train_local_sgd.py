"""Trains a CNN on Fashion-MNIST twice: averaging every gradient, and with local SGD.

    mydistrun -np 2 python examples/train_local_sgd.py --plot local_sgd.png

With LocalSGD a rank takes `--every` steps by itself; then all ranks average their parameters. The
end of the output says how many bytes that saves and how much accuracy it costs. What a strategy
needs is marked (1) to (3).
"""

import argparse
from pathlib import Path

import torch
from comparison import Curve, add_plot_argument, bytes_sent, check_plot, compare
from fashion_mnist import DATA, load
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from train_fashion_mnist import test_accuracy

import mydist as md


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the four IDX files")
    parser.add_argument("--every", type=int, default=8, help="local steps between two averages")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train-images", type=int, default=12000, help="use only the first N")
    parser.add_argument("--test-images", type=int, default=5000, help="use only the first N")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it works")
    add_plot_argument(parser)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.epochs, arguments.train_images, arguments.test_images = 2, 3072, 1000
    return arguments


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


def train(strategy: md.Strategy, train_data, test_data, arguments: argparse.Namespace) -> Curve:
    """The same start, the same batches in the same order, whatever the strategy."""
    torch.manual_seed(arguments.seed)
    model = make_model()
    loader = md.prepare_loader(
        train_data, batch_size=arguments.batch_size, seed=arguments.seed, tail="drop"
    )
    test_loader = md.prepare_loader(test_data, batch_size=1000, shuffle=False, tail="join")
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    optimizer = md.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        named_buffers=model.named_buffers(),  # (1) So that BatchNorm's statistics are averaged.
        communication=strategy,  # (2)
    )
    md.broadcast_parameters(model.state_dict(), root_rank=0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, arguments.epochs * len(loader)
    )

    curve = Curve(type(strategy).__name__, "test accuracy")
    for epoch in range(1, arguments.epochs + 1):
        before = bytes_sent()
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            scheduler.step()
        optimizer.finish()  # (3) All ranks have the same model now, and may go on from it.
        sent = bytes_sent() - before
        curve.add(epoch * len(loader), sent, test_accuracy(model, test_loader))
    return curve


def main() -> None:
    arguments = parse_arguments()
    md.init()
    check_plot(arguments.plot)
    images, labels = load(arguments.data, "train")
    train_data = TensorDataset(images[: arguments.train_images], labels[: arguments.train_images])
    images, labels = load(arguments.data, "t10k")
    test_data = TensorDataset(images[: arguments.test_images], labels[: arguments.test_images])
    plain = train(md.SynchronousGradients(), train_data, test_data, arguments)
    local = train(md.LocalSGD(every=arguments.every), train_data, test_data, arguments)
    compare(plain, local, arguments.plot)
    md.shutdown()


if __name__ == "__main__":
    main()
