"""Trains the small GPT of train_gpt.py with a sharded optimizer: each rank keeps a slice of Adam.

    mydistrun -np 2 python examples/train_zero.py --stage 2 --checkpoint gpt
    mydistrun -np 3 python examples/train_zero.py --stage 1 --checkpoint gpt

The second command goes on from where the first one ended, on another number of ranks.
"""

import argparse
from pathlib import Path

import torch
from torch.nn import functional
from train_gpt import GPT, draw_batch, load_text, make_parser

import mydist as md


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, default=2, choices=(1, 2))
    parser.add_argument("--checkpoint", type=Path, help="folder to go on from and to save to")
    return parser.parse_args()


def megabytes(count: int) -> str:
    return f"{count / 1e6:.2f} MB"


def train(arguments: argparse.Namespace) -> None:
    text = load_text(arguments.text_megabytes)
    torch.manual_seed(arguments.seed)
    model = GPT(arguments)
    if md.rank() == 0:
        print(md.memory_plan(model, arguments.stage, md.size(), torch.optim.AdamW))
    optimizer = md.ShardedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=arguments.lr, fused=True),
        named_parameters=model.named_parameters(),
        stage=arguments.stage,
    )
    folder = arguments.checkpoint
    checkpoint = md.Checkpoint(folder, model=model, optimizer=optimizer) if folder else None
    first = checkpoint.step if checkpoint else 0
    if first and md.rank() == 0:
        print(f"goes on after step {first}")
    torch.manual_seed(arguments.seed + 1 + md.rank() + first)  # The ranks see different data.

    last = first + arguments.steps
    for step in range(first + 1, last + 1):
        inputs, targets = draw_batch(text, arguments)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.clip_grad_norm_(1.0)  # The norm of the whole gradients.
        optimizer.step()
        if step % 20 == 0 or step == last:
            mean_loss = md.allreduce(loss.detach(), name="loss")
            if md.rank() == 0:
                print(f"step {step}: loss {mean_loss.item():.3f}")
    if checkpoint:
        checkpoint.save(last)
    use = optimizer.memory()
    print(
        f"rank {md.rank()} of {md.size()} keeps {megabytes(use.optimizer)} of state and "
        f"{megabytes(use.gradients)} of gradients for {megabytes(use.parameters)} of parameters"
    )


if __name__ == "__main__":
    parsed = parse_arguments()
    md.init()
    train(parsed)
    md.shutdown()
