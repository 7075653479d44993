"""Trains a small network while ranks are killed, replaced and added.

    mydistrun -np 2 --min-np 1 python examples/train_elastic.py

Kill a rank (`kill -9`): the other one goes on from the last commit, and a new process takes the
place some seconds later. With a script that prints the hosts, the job also grows and shrinks:

    echo localhost:1 > hosts.txt
    mydistrun --min-np 1 --max-np 4 --host-discovery-script "cat hosts.txt" \\
        python examples/train_elastic.py --epochs 100 --pause 0.05
    echo localhost:3 > hosts.txt    # in another terminal

What an elastic job needs is marked (1) to (5).
"""

import argparse
import os
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import mydist as md


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=20, help="samples per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="for a job of one rank")
    parser.add_argument("--commit-every", type=int, default=5, help="steps between two commits")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step waits")
    return parser.parse_args()


def make_data(samples: int) -> TensorDataset:
    """Points in two spirals, which are the classes."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(samples) % 2
    turn = torch.rand(samples, generator=generator) * 3 + 0.5
    angle = 2 * turn + labels * torch.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1)
    return TensorDataset(points, labels)


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )


def main() -> None:
    arguments = parse_arguments()
    # (1) What takes long comes before init(): from there on the other ranks wait for a new one.
    data, model = make_data(arguments.samples), make_model()
    md.init()
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=arguments.lr * md.size(), momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    # (2) The sampler deals out what is left of an epoch to the ranks there are.
    sampler = md.elastic.ElasticSampler(data)
    loader = DataLoader(data, batch_size=arguments.batch_size, sampler=sampler)
    # (3) All that must go on when a rank is lost, and what a new rank has to get.
    state = md.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)

    def scale_learning_rate() -> None:
        """More ranks make larger batches."""
        for group in optimizer.param_groups:
            group["lr"] = arguments.lr * md.size()
        print(f"rank {md.rank()} of {md.size()} (pid {os.getpid()})", flush=True)

    state.register_reset_callbacks([scale_learning_rate])

    # (4) Called again whenever the ranks have changed.
    @md.elastic.run
    def train(state: md.elastic.TorchState) -> None:
        while state.epoch < arguments.epochs:
            sampler.set_epoch(state.epoch)
            loss = torch.zeros(())
            for number, (points, labels) in enumerate(loader):
                time.sleep(arguments.pause)
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(points), labels)
                loss.backward()
                optimizer.step()
                # (5) These samples are done; a commit keeps that, and the weights.
                sampler.record_batch(number, arguments.batch_size)
                if number % arguments.commit_every == 0:
                    state.commit()
            state.epoch += 1
            if md.rank() == 0:
                print(f"epoch {state.epoch} on {md.size()} ranks: loss {loss:.4f}", flush=True)
            state.commit()

    print(f"rank {md.rank()} of {md.size()} (pid {os.getpid()})", flush=True)
    train(state)
    with torch.no_grad():
        points, labels = data.tensors
        accuracy = (model(points).argmax(dim=1) == labels).float().mean().item()
    if md.rank() == 0:
        print(f"accuracy {accuracy:.4f} after {state.epoch} epochs", flush=True)


if __name__ == "__main__":
    main()
