"""Trains a CNN on Fashion-MNIST with torch's own DistributedDataParallel, over the backend mydist.

    mydistrun -np 2 python examples/train_ddp.py
    torchrun --nproc-per-node 2 examples/train_ddp.py

Nothing but the name of the backend is mydist's; --backend gloo shows the difference.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from fashion_mnist import DATA, load
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import mydist.c10d  # noqa: F401  (Not needed where mydist is installed: torch finds the name.)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="mydist", help="of torch.distributed: gloo, mydist")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the four IDX files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train-images", type=int, default=60000, help="use only the first N")
    return parser.parse_args()


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


def mean_of_all(value: float) -> float:
    mean = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean.item()


@torch.no_grad()
def test_accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Each rank takes every size-th image."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    guesses = torch.cat([model(part).argmax(1) for part in images[mine].split(1000)])
    return mean_of_all((guesses == labels[mine]).double().mean().item())


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group(arguments.backend)
    torch.manual_seed(arguments.seed)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    images, labels = load(arguments.data, "train")
    data = TensorDataset(images[: arguments.train_images], labels[: arguments.train_images])
    sampler = DistributedSampler(data, seed=arguments.seed, drop_last=True)
    loader = DataLoader(data, arguments.batch_size, sampler=sampler, drop_last=True)

    start = time.perf_counter()
    for epoch in range(1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()  # DDP averages the gradients meanwhile.
            optimizer.step()
            losses.append(loss.item())
        mean_loss = mean_of_all(sum(losses) / len(losses))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: mean loss {mean_loss:.3f}")
    seconds = time.perf_counter() - start
    accuracy = test_accuracy(model, *load(arguments.data, "t10k"))
    if dist.get_rank() == 0:
        count = arguments.epochs * len(loader) * arguments.batch_size * dist.get_world_size()
        print(
            f"test accuracy {accuracy:.4f} on {dist.get_world_size()} ranks over "
            f"{dist.get_backend()}, {count / seconds:.0f} images/s"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
