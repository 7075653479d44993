"""Trains on clients that differ: each has other classes, another number of images, another speed.

    mydistrun -np 2 python examples/federated.py --plot federated.png

Every rank is a client. It has a few classes of Fashion-MNIST and keeps them to itself. The example
trains twice: averaging every gradient, and with LocalSGD, which weighs each client by the images
that it has seen (McMahan et al. 2016, arXiv:1602.05629). The end of the output says how many bytes
that saves and how much accuracy it costs. What unequal clients need is marked (1) to (4).
"""

import argparse
import time
from pathlib import Path

import torch
from comparison import Curve, add_plot_argument, bytes_sent, check_plot, compare
from fashion_mnist import DATA, load
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from train_fashion_mnist import make_model, test_accuracy

import mydist as md


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the four IDX files")
    parser.add_argument("--every", type=int, default=8, help="local steps between two averages")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="images of the fastest client")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train-images", type=int, default=12000, help="use only the first N")
    parser.add_argument("--test-images", type=int, default=5000, help="use only the first N")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it works")
    add_plot_argument(parser)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.epochs, arguments.train_images, arguments.test_images = 2, 3000, 1000
    return arguments


class Client:
    """This rank's images, and how fast it is: client r needs r + 1 times as long per image."""

    def __init__(self, images, labels, batch_size: int) -> None:
        self.slowness = md.rank() + 1
        # (1) A slow client takes smaller batches, so that no step waits for it.
        self.batch_size = batch_size // self.slowness
        # Sorted by label, and cut so that a fast client has more.
        order = labels.argsort(stable=True)
        shares = [1 / (rank + 1) + 0.1 for rank in range(md.size())]
        ends = [round(len(order) * sum(shares[:n]) / sum(shares)) for n in range(md.size() + 1)]
        own = order[ends[md.rank()] : ends[md.rank() + 1]]
        self.data = TensorDataset(images[own], labels[own])
        self.classes = sorted(set(labels[own].tolist()))

    def batches(self):
        """All images in random order; the pause stands for a slow processor."""
        for images, labels in DataLoader(self.data, self.batch_size, shuffle=True):
            time.sleep(1e-5 * self.slowness * len(labels))
            yield images, labels


def train(strategy: md.Strategy, client: Client, test_loader, arguments) -> Curve:
    torch.manual_seed(arguments.seed)
    model = make_model()
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=arguments.lr),
        named_parameters=model.named_parameters(),
        communication=strategy,
    )
    md.broadcast_parameters(model.state_dict(), root_rank=0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    curve = Curve(type(strategy).__name__, "test accuracy", "epochs")
    for epoch in range(1, arguments.epochs + 1):
        before = bytes_sent()
        model.train()
        for images, labels in client.batches():
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.count_samples(len(labels))  # (2) The weight of this client in the next round.
            optimizer.step()
        md.join()  # (3) A client without images left lets the others finish theirs.
        optimizer.finish()  # (4) All clients have the same model, and may go on from it.
        scheduler.step()
        sent = bytes_sent() - before
        curve.add(epoch, sent, test_accuracy(model, test_loader))
    return curve


def main() -> None:
    arguments = parse_arguments()
    md.init()
    check_plot(arguments.plot)
    images, labels = load(arguments.data, "train")
    client = Client(
        images[: arguments.train_images], labels[: arguments.train_images], arguments.batch_size
    )
    print(
        f"client {md.rank()}: {len(client.data)} images of the classes {client.classes}, in "
        f"batches of {client.batch_size}"
    )
    images, labels = load(arguments.data, "t10k")
    test_data = TensorDataset(images[: arguments.test_images], labels[: arguments.test_images])
    test_loader = md.prepare_loader(test_data, batch_size=1000, shuffle=False, tail="join")
    plain = train(md.SynchronousGradients(), client, test_loader, arguments)
    local = train(md.LocalSGD(every=arguments.every, weighted=True), client, test_loader, arguments)
    compare(plain, local, arguments.plot)
    md.shutdown()


if __name__ == "__main__":
    main()
