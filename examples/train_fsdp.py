"""Trains the small GPT of train_gpt.py with FSDP2: each rank keeps a part of every parameter.

    mydistrun -np 2 python examples/train_fsdp.py --checkpoint gpt
    mydistrun -np 3 python examples/train_fsdp.py --checkpoint gpt

The second command goes on from where the first one ended, on another number of ranks.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from train_gpt import GPT, draw_batch, load_text, make_parser

import mydist.c10d  # noqa: F401  (Not needed where mydist is installed: torch finds the name.)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--backend", default="mydist", help="of torch.distributed: gloo, mydist")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, sum in float32")
    parser.add_argument("--checkpoint", type=Path, help="folder to go on from and to save to")
    return parser.parse_args()


def make_sharded(arguments: argparse.Namespace) -> GPT:
    """Each block gathers its parameters when it needs them, and frees them again."""
    torch.manual_seed(arguments.seed)
    model = GPT(arguments)
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = low if arguments.bf16 else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """From the newest complete checkpoint; the number of steps that it has seen."""
    found = sorted(folder.glob("step-*/.metadata"))
    if not found:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "steps": 0}
    dcp.load(state, checkpoint_id=found[-1].parent)  # Each rank reads what it keeps now.
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return state["steps"]


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, steps: int) -> None:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "steps": steps}
    dcp.save(state, checkpoint_id=folder / f"step-{steps:06}")


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    text = load_text(arguments.text_megabytes)
    model = make_sharded(arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    first = load(model, optimizer, arguments.checkpoint) if arguments.checkpoint else 0
    if first and rank == 0:
        print(f"goes on after step {first}")
    torch.manual_seed(arguments.seed + 1 + rank + first)  # The ranks see different data.

    last = first + arguments.steps
    for step in range(first + 1, last + 1):
        inputs, targets = draw_batch(text, arguments)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0 or step == last:
            mean_loss = loss.detach().clone()
            dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step}: loss {mean_loss.item():.3f}")
    if arguments.checkpoint:
        save(model, optimizer, arguments.checkpoint, last)
    here = sum(parameter.to_local().numel() for parameter in model.parameters())
    whole = sum(parameter.numel() for parameter in model.parameters())
    print(f"rank {rank} of {size} keeps {here} of {whole} parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
