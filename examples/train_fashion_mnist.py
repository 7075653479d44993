"""Trains a LeNet-size CNN on Fashion-MNIST: 70,000 real images of 28 x 28 pixels, 10 classes.

    mydistrun -np 2 python examples/train_fashion_mnist.py

What data parallelism needs is marked (1) to (6); the rest is ordinary PyTorch. The images are those
of Debian's package dataset-fashion-mnist; --data takes any folder with the same four IDX files.
"""

import argparse
import gzip
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import mydist as md

DATA = Path("/usr/share/datasets/fashion-mnist")


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


def read_idx(path: Path) -> torch.Tensor:
    """One IDX file: a magic number with the number of dimensions, the dimensions, the bytes."""
    try:
        with gzip.open(path) as file:
            content = file.read()
    except FileNotFoundError:
        sys.exit(f"{path} is missing: install Debian's dataset-fashion-mnist or pass --data FOLDER")
    dimensions = content[3]
    shape = np.frombuffer(content, dtype=">i4", count=dimensions, offset=4)
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions)
    return torch.from_numpy(values.reshape(shape.tolist()).copy())


def load(folder: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as float32 [N, 1, 28, 28] with mean 0 and deviation 1, labels as int64 [N]."""
    images = read_idx(folder / f"{split}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz")
    pixels = images.unsqueeze(1).float() / 255
    return (pixels - 0.2860) / 0.3530, labels.long()


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def my_batches(count: int, batch_size: int, epoch: int, seed: int) -> list[torch.Tensor]:
    """This rank's share of a shuffled epoch, as index batches; equally many on every rank."""
    # The same permutation everywhere, of which rank r takes every size-th index from r on.
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
    per_rank = count // md.size()
    mine = order[md.rank() : per_rank * md.size() : md.size()]
    return list(mine.split(batch_size))


class ProgressBar:
    """Fills up on rank 0: in place on a terminal, as a line per fifth where output is collected."""

    def __init__(self, title: str, total: int) -> None:
        self.title = title
        self.total = total
        self.shown = md.rank() == 0
        self.in_place = sys.stderr.isatty()

    def show(self, done: int, loss: float) -> None:
        is_fifth = 5 * done // self.total > 5 * (done - 1) // self.total
        if not self.shown or not (self.in_place or is_fifth):
            return
        filled = "#" * (30 * done // self.total)
        line = f"{self.title} [{filled:<30}] {done}/{self.total} loss {loss:.3f}"
        end = "\n" if done == self.total or not self.in_place else ""
        sys.stderr.write(f"\r{line}{end}" if self.in_place else line + end)


def train_epoch(model, optimizer, scheduler, data, epoch, arguments) -> float:
    images, labels = data
    batches = my_batches(len(labels), arguments.batch_size, epoch, arguments.seed)
    bar = ProgressBar(f"epoch {epoch + 1}", len(batches))
    model.train()
    total_loss = torch.zeros(())
    for step, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()  # Gradients travel while backward is still running …
        optimizer.step()  # … and are waited for here.
        scheduler.step()
        total_loss += loss.detach()
        bar.show(step, loss.item())
    # (5) A metric of the whole job is the average over ranks.
    return md.allreduce(total_loss / len(batches), name="epoch_loss").item()


@torch.no_grad()
def test_accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Each rank judges its share of the test images; the counts are summed."""
    model.eval()
    share = slice(md.rank(), None, md.size())
    correct = torch.zeros((), dtype=torch.int64)
    for batch, expected in zip(images[share].split(1000), labels[share].split(1000), strict=True):
        correct += (model(batch).argmax(dim=1) == expected).sum()
    return md.allreduce(correct, op=md.Sum, name="correct").item() / len(labels)


def main() -> None:
    arguments = parse_arguments()
    md.init()  # (1) Meet the other ranks.
    log = print if md.rank() == 0 else (lambda *_: None)
    torch.manual_seed(arguments.seed)

    images, labels = load(arguments.data, "train")
    count = arguments.train_images or len(labels)
    train_data = images[:count], labels[:count]
    test_data = load(arguments.data, "t10k")
    model = make_model()

    # (2) The global batch grows with the number of ranks, so the learning rate does as well.
    optimizer = torch.optim.SGD(
        model.parameters(), lr=arguments.lr * md.size(), momentum=0.9, weight_decay=1e-4
    )
    # (3) Average the gradients over all ranks, and (4) start from the same parameters everywhere.
    optimizer = md.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    md.broadcast_parameters(model.state_dict(), root_rank=0)
    md.broadcast_optimizer_state(optimizer, root_rank=0)

    steps = len(my_batches(count, arguments.batch_size, 0, arguments.seed))
    warmup = max(1, int(arguments.warmup_epochs * steps))
    total = arguments.epochs * steps

    def rate(step: int) -> float:
        """Linear warm-up to the scaled rate (Goyal et al. 2017), then a cosine down to 0."""
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    log(f"{count:,} training images on {md.size()} ranks, {steps} steps per epoch and rank")

    accuracy, seconds = 0.0, 0.0
    for epoch in range(arguments.epochs):
        start = time.perf_counter()
        loss = train_epoch(model, optimizer, scheduler, train_data, epoch, arguments)
        seconds += time.perf_counter() - start
        accuracy = test_accuracy(model, *test_data)
        log(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {accuracy:.4f}")

    # (6) Only one rank reports.
    speed = count // md.size() * md.size() * arguments.epochs / seconds
    log(
        f"test accuracy {accuracy:.4f} after {arguments.epochs} epochs on {md.size()} ranks, "
        f"{speed:.0f} images/s, timeline {os.environ.get('MYDIST_TIMELINE', 'none')}"
    )
    md.shutdown()


if __name__ == "__main__":
    main()
