"""Trains a LeNet-size CNN on Fashion-MNIST: 70,000 real images of 28 x 28 pixels, 10 classes.

    mydistrun -np 2 python examples/train_fashion_mnist.py

What data parallelism needs is marked (1) to (7); the rest is ordinary PyTorch. The images are those
of Debian's package dataset-fashion-mnist; --data takes any folder with the same four IDX files.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from fashion_mnist import DATA, load
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import mydist as md


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the four IDX files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--warmup-epochs", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train-images", type=int, default=None, help="use only the first N")
    return parser.parse_args()


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.MaxPool2d(2),  # Before ReLU: the same numbers, a quarter of the work.
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train_epoch(model, optimizer, scheduler, loader, title: str) -> float:
    model.train()
    metrics = md.Metrics()
    bar = md.progress(loader, title, interval=1.0)
    for images, labels in bar:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()  # Gradients travel while backward is still running …
        optimizer.step()  # … and are waited for here.
        scheduler.step()
        metrics.update(loss=loss, weight=len(labels))
        bar.show(loss=loss)
    return metrics.compute()["loss"]  # (6) The average over all samples of all ranks.


@torch.no_grad()
def test_accuracy(model: nn.Module, loader) -> float:
    """Each rank judges its share of the test images."""
    model.eval()
    metrics = md.Metrics()
    for images, labels in loader:
        is_right = model(images).argmax(dim=1) == labels
        metrics.update(accuracy=is_right.float().mean(), weight=len(labels))
    return metrics.compute()["accuracy"]


def main() -> None:
    arguments = parse_arguments()
    md.init()  # (1) Meet the other ranks.
    log = print if md.rank() == 0 else (lambda *_: None)
    torch.manual_seed(arguments.seed)

    # (2) Each rank sees its share of the images, in another order every epoch.
    images, labels = load(arguments.data, "train")
    count = arguments.train_images or len(labels)
    train_data = TensorDataset(images[:count], labels[:count])
    train_loader = md.prepare_loader(
        train_data, batch_size=arguments.batch_size, seed=arguments.seed, tail="drop"
    )
    test_data = TensorDataset(*load(arguments.data, "t10k"))
    test_loader = md.prepare_loader(test_data, batch_size=1000, shuffle=False, tail="join")
    model = make_model().to(memory_format=torch.channels_last)  # Faster convolutions on CPUs.

    # (3) The global batch grows with the number of ranks, so the learning rate does as well. The
    # first steps go from the rate of one rank up to it (Goyal et al. 2017).
    optimizer = torch.optim.SGD(
        model.parameters(), lr=md.scale_lr(arguments.lr), momentum=0.9, weight_decay=1e-4
    )
    steps = len(train_loader)
    md.WarmupLR(optimizer, steps=int(arguments.warmup_epochs * steps))
    # (4) Average the gradients over all ranks, and (5) start from the same parameters everywhere.
    optimizer = md.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    md.broadcast_parameters(model.state_dict(), root_rank=0)
    md.broadcast_optimizer_state(optimizer, root_rank=0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs * steps)
    log(f"{count:,} training images on {md.size()} ranks, {steps} steps per epoch and rank")

    accuracy, seconds = 0.0, 0.0
    for epoch in range(arguments.epochs):
        start = time.perf_counter()
        loss = train_epoch(model, optimizer, scheduler, train_loader, f"epoch {epoch + 1}")
        seconds += time.perf_counter() - start
        accuracy = test_accuracy(model, test_loader)
        log(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {accuracy:.4f}")

    # (7) Only one rank reports.
    speed = count // md.size() * md.size() * arguments.epochs / seconds
    log(
        f"test accuracy {accuracy:.4f} after {arguments.epochs} epochs on {md.size()} ranks, "
        f"{speed:.0f} images/s, timeline {os.environ.get('MYDIST_TIMELINE', 'none')}"
    )
    md.shutdown()


if __name__ == "__main__":
    main()
