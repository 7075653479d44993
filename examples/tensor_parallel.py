"""Trains a small GPT whose layers are split over ranks: tensor parallelism, with FSDP2 around it.

    mydistrun -np 4 python examples/tensor_parallel.py --tensor-parallel 2

Two ranks compute the halves of each layer, and the two pairs see different data. A block sums over
its pair twice, after its attention and after its MLP (Shoeybi et al. 2019).
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from train_gpt import draw_batch, load_text

import mydist.c10d  # noqa: F401  (Not needed where mydist is installed: torch finds the name.)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="mydist", help="of torch.distributed: gloo, mydist")
    parser.add_argument("--tensor-parallel", type=int, help="ranks per layer; default: all")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per group and step")
    parser.add_argument("--context", type=int, default=64, help="characters per sequence")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4, help="a multiple of the ranks per layer")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text-megabytes", type=float, default=2.0)
    return parser.parse_args()


class Block(nn.Module):
    """A block of a transformer; `query`, `key` and `value` may give only some of the heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_size = width // heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.after_attention = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = self.before_attention(x)
        query, key, value = (
            layer(normal).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.after_attention(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.before_mlp(x))))


class GPT(nn.Module):
    """Maps characters and the ones that follow them, both [batch, time], to the mean loss."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        width = arguments.width
        self.characters = nn.Embedding(128, width)
        self.positions = nn.Parameter(0.02 * torch.randn(arguments.context, width))
        self.blocks = nn.Sequential(
            *(Block(width, arguments.heads) for _ in range(arguments.layers))
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128))

    def forward(self, characters: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.characters(characters) + self.positions))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def split(model: GPT, mesh: DeviceMesh) -> GPT:
    """Over the ranks of a group by columns and then rows, over the groups by FSDP2."""
    columns = ("query", "key", "value", "wide")
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in ("after_attention", "narrow")}
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group(arguments.backend)
    ranks_per_layer = arguments.tensor_parallel or dist.get_world_size()
    shape = (dist.get_world_size() // ranks_per_layer, ranks_per_layer)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    text = load_text(arguments.text_megabytes)
    torch.manual_seed(arguments.seed)
    model = split(GPT(arguments), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    torch.manual_seed(arguments.seed + 1 + mesh.get_local_rank("data"))  # One batch per group.

    for step in range(1, arguments.steps + 1):
        loss = model(*draw_batch(text, arguments))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == arguments.steps:
            mean_loss = loss.detach().clone()
            dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {mean_loss.item():.3f}")
    part = tuple(model.blocks[0].query.weight.to_local().shape)
    print(f"rank {dist.get_rank()} keeps {part} of a weight of {(arguments.width,) * 2}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
