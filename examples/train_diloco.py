"""Trains a tiny GPT on Python's sources twice: averaging every gradient, and with DiLoCo.

    mydistrun -np 2 python examples/train_diloco.py --plot diloco.png

With DiLoCo a rank takes `--every` steps of AdamW by itself. Then an outer optimizer moves the model
along the mean of what the ranks have changed, and all ranks go on from there (Douillard et al.
2023, arXiv:2311.08105). As in that paper, training begins with the usual gradients; both ways go on
from the same model. The end of the output says how many bytes DiLoCo saves and what it costs.
"""

import argparse
from copy import deepcopy

import torch
from comparison import Curve, add_plot_argument, bytes_sent, check_plot, compare
from torch.nn import functional
from train_gpt import GPT, draw_batch, load_text

import mydist as md


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--start", type=int, default=300, help="steps before the two ways part")
    parser.add_argument("--every", type=int, default=25, help="local steps between two rounds")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="sequences per rank and step")
    parser.add_argument("--context", type=int, default=32, help="characters per sequence")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text-megabytes", type=float, default=2.0)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it works")
    add_plot_argument(parser)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.start, arguments.every, arguments.rounds = 20, 10, 3
        arguments.width, arguments.text_megabytes = 32, 0.2
    return arguments


@torch.no_grad()
def validation_loss(model: GPT, text: torch.Tensor, arguments: argparse.Namespace) -> float:
    """On text that no rank trains on; every rank has its own sequences of it."""
    random_state = torch.get_rng_state()  # Training goes on as if nothing had been drawn here.
    torch.manual_seed(arguments.seed + md.rank())
    losses = []
    for _ in range(16):
        inputs, targets = draw_batch(text, arguments)
        losses.append(functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()))
    torch.set_rng_state(random_state)
    return md.allreduce(torch.stack(losses).mean(), name="validation").item()


def step(model: GPT, optimizer, text: torch.Tensor, arguments: argparse.Namespace) -> None:
    inputs, targets = draw_batch(text, arguments)
    optimizer.zero_grad()
    functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    optimizer.clip_grad_norm_(1.0)
    optimizer.step()


def wrapped(model: GPT, strategy: md.Strategy, arguments: argparse.Namespace):
    """The inner optimizer, which averages as the strategy says."""
    return md.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=arguments.lr),
        named_parameters=model.named_parameters(),
        communication=strategy,
    )


def train(
    strategy: md.Strategy, model: GPT, texts: list[torch.Tensor], arguments: argparse.Namespace
) -> Curve:
    """The same batches in the same order, whatever the strategy. `texts`: to train, to validate."""
    torch.manual_seed(arguments.seed + 1 + md.rank())  # The ranks see different data.
    optimizer = wrapped(model, strategy, arguments)
    curve = Curve(type(strategy).__name__, "validation loss")
    for round_number in range(1, arguments.rounds + 1):
        before = bytes_sent()
        for _ in range(arguments.every):
            step(model, optimizer, texts[0], arguments)  # DiLoCo's round is part of the last one.
        sent = bytes_sent() - before
        loss = validation_loss(model, texts[1], arguments)
        curve.add(arguments.start + round_number * arguments.every, sent, loss)
    optimizer.finish()  # All ranks have the model to keep; here they have it since the last round.
    return curve


def main() -> None:
    arguments = parse_arguments()
    md.init()
    check_plot(arguments.plot)
    text = load_text(arguments.text_megabytes)
    texts = list(text.split(len(text) * 9 // 10))
    torch.manual_seed(arguments.seed)
    model = GPT(arguments)
    md.broadcast_parameters(model.state_dict(), root_rank=0)
    torch.manual_seed(arguments.seed + 1000 + md.rank())
    optimizer = wrapped(model, md.SynchronousGradients(), arguments)
    for _ in range(arguments.start):
        step(model, optimizer, texts[0], arguments)
    del optimizer  # Its hooks go with it.

    plain = train(md.SynchronousGradients(), deepcopy(model), texts, arguments)
    local = train(md.DiLoCo(every=arguments.every), deepcopy(model), texts, arguments)
    compare(plain, local, arguments.plot)
    md.shutdown()


if __name__ == "__main__":
    main()
