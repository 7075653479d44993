"""Trains a GAN with two optimizers on points in the plane: eight clusters on a circle.

    mydistrun -np 2 python examples/train_gan.py

A generator and a discriminator play against each other (Goodfellow et al. 2014, arXiv:1406.2661,
with the loss that does not saturate). Each has its DistributedOptimizer; what two of them need is
marked (1) to (3).
"""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional

import mydist as md

CLUSTERS, RADIUS, SPREAD = 8, 2.0, 0.1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=128, help="points per rank and step")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--noise", type=int, default=8, help="numbers the generator starts from")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def make_network(inputs: int, width: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )


def centers() -> torch.Tensor:
    """float32 [CLUSTERS, 2]."""
    angles = torch.arange(CLUSTERS) * (2 * math.pi / CLUSTERS)
    return RADIUS * torch.stack([angles.cos(), angles.sin()], dim=1)


def real_points(count: int) -> torch.Tensor:
    """float32 [count, 2]."""
    return centers()[torch.randint(CLUSTERS, (count,))] + SPREAD * torch.randn(count, 2)


def make_optimizer(model: nn.Module, name: str, lr: float):
    # (1) Both models have a parameter "0.weight". A name stands for one tensor in the whole job, so
    # each optimizer puts its own in front.
    named = [(f"{name}.{key}", parameter) for key, parameter in model.named_parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.5, 0.999))
    return md.DistributedOptimizer(optimizer, named_parameters=named)


def discriminator_step(generator, discriminator, optimizer, arguments) -> torch.Tensor:
    """Real points are to get positive logits, generated ones negative."""
    noise = torch.randn(arguments.batch_size, arguments.noise)
    with torch.no_grad():  # (2) No gradients for the generator, whose turn it is not.
        fake = generator(noise)
    real = real_points(arguments.batch_size)
    # The logit of being generated is minus that of being real.
    loss = functional.softplus(-discriminator(real)).mean()
    loss = loss + functional.softplus(discriminator(fake)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def generator_step(generator, discriminator, optimizer, arguments) -> torch.Tensor:
    """Generated points are to be taken for real ones."""
    # (3) The loss goes through the discriminator as well. While it is frozen it gets no gradients,
    # so its optimizer sends none.
    discriminator.requires_grad_(False)
    noise = torch.randn(arguments.batch_size, arguments.noise)
    loss = functional.softplus(-discriminator(generator(noise))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    discriminator.requires_grad_(True)
    return loss.detach()


@torch.no_grad()
def quality(generator: nn.Module, noise_size: int) -> tuple[float, int]:
    """The share of points near a cluster, and the number of clusters with at least one in 50."""
    points = generator(torch.randn(500, noise_size))
    distances = torch.cdist(points, centers())
    nearest = distances.argmin(dim=1)
    near = distances.min(dim=1).values < 5 * SPREAD
    share = md.allreduce(near.double().mean(), name="quality").item()
    counts = md.allreduce(torch.bincount(nearest[near], minlength=CLUSTERS), op=md.Sum)
    return share, int((counts >= 500 * md.size() // 50).sum())


def main() -> None:
    arguments = parse_arguments()
    md.init()
    md.seed_everything(arguments.seed)  # Other noise and other points on every rank.
    generator = make_network(arguments.noise, arguments.width, 2)
    discriminator = make_network(2, arguments.width, 1)
    generator_optimizer = make_optimizer(generator, "generator", arguments.lr)
    discriminator_optimizer = make_optimizer(discriminator, "discriminator", arguments.lr)
    for model in (generator, discriminator):
        md.broadcast_parameters(model.state_dict(), root_rank=0)

    log = print if md.rank() == 0 else (lambda *_: None)
    metrics = md.Metrics()
    for step in range(1, arguments.steps + 1):
        metrics.update(
            discriminator=discriminator_step(
                generator, discriminator, discriminator_optimizer, arguments
            ),
            generator=generator_step(generator, discriminator, generator_optimizer, arguments),
        )
        if step % max(1, arguments.steps // 5) == 0:
            losses = metrics.compute()
            metrics.reset()
            log(
                f"step {step}: discriminator {losses['discriminator']:.4f}, "
                f"generator {losses['generator']:.4f}"
            )
    share, found = quality(generator, arguments.noise)
    log(f"{share:.1%} of the points are near a cluster, {found} of {CLUSTERS} clusters found")
    md.check_consistency(generator)  # Raises an error that names the parameter and the ranks.
    md.check_consistency(discriminator)
    log("all ranks have the same parameters")
    md.shutdown()


if __name__ == "__main__":
    main()
