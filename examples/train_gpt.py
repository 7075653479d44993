"""Trains a small character-level GPT on text every machine has: Python's standard library.

    mydistrun -np 2 python examples/train_gpt.py --steps 200

Rank 0 writes a sample at the end. The model is a plain pre-norm transformer decoder (Vaswani et al.
2017; Radford et al. 2019).
"""

import argparse
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import mydist as md


def make_parser(description: str) -> argparse.ArgumentParser:
    """The arguments of all examples that train this model."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank and step")
    parser.add_argument("--context", type=int, default=128, help="characters per sequence")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text-megabytes", type=float, default=2.0)
    return parser


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--compression", choices=["none", "fp16", "bf16"], default="none")
    return parser.parse_args()


def load_text(megabytes: float) -> torch.Tensor:
    """The first megabytes of the standard library's sources as bytes, int64 [N]; only ASCII."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) > megabytes * 1e6:
            break
    values = torch.tensor(list(text[: int(megabytes * 1e6)]))
    return values[values < 128]


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.after_attention = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time_steps, width = x.shape
        qkv = self.qkv(self.before_attention(x))
        split = qkv.view(batch, time_steps, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.after_attention(mixed.transpose(1, 2).reshape(batch, time_steps, width))
        return x + self.mlp(x)


class GPT(nn.Module):
    """Maps characters [batch, time] to the next character's logits [batch, time, 128]."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        width = arguments.width
        self.characters = nn.Embedding(128, width)
        self.positions = nn.Embedding(arguments.context, width)
        self.blocks = nn.Sequential(
            *(Block(width, arguments.heads) for _ in range(arguments.layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 128, bias=False)
        self.head.weight = self.characters.weight  # Tied, as usual: reduced once, not twice.
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(characters.shape[1])
        x = self.characters(characters) + self.positions(positions)
        return self.head(self.norm(self.blocks(x)))


def draw_batch(
    text: torch.Tensor, arguments: argparse.Namespace
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random sequences and the same shifted by one; each rank draws from its own stream."""
    starts = torch.randint(len(text) - arguments.context - 1, (arguments.batch_size,))
    windows = torch.stack([text[s : s + arguments.context + 1] for s in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def sample(model: GPT, prompt: str, length: int, context: int) -> str:
    characters = torch.tensor([list(prompt.encode())])
    for _ in range(length):
        logits = model(characters[:, -context:])[0, -1]
        following = torch.multinomial(functional.softmax(logits, dim=0), 1)
        characters = torch.cat([characters, following.unsqueeze(0)], dim=1)
    return bytes(characters[0].tolist()).decode()


def main() -> None:
    arguments = parse_arguments()
    md.init()
    text = load_text(arguments.text_megabytes)
    torch.manual_seed(arguments.seed)
    model = GPT(arguments)
    optimizer = md.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=arguments.lr),
        named_parameters=model.named_parameters(),
        compression=getattr(md.Compression, arguments.compression),
    )
    md.broadcast_parameters(model.state_dict(), root_rank=0)
    torch.manual_seed(arguments.seed + 1 + md.rank())  # From here on the ranks see different data.

    start = time.perf_counter()
    mean_loss = 0.0
    for step in range(1, arguments.steps + 1):
        inputs, targets = draw_batch(text, arguments)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        if step % 20 == 0 or step == arguments.steps:
            mean_loss = md.allreduce(loss.detach(), name="loss").item()
            if md.rank() == 0:
                print(f"step {step}: loss {mean_loss:.3f}")
    seconds = time.perf_counter() - start
    if md.rank() == 0:
        count = arguments.steps * arguments.batch_size * arguments.context * md.size()
        print(sample(model, "def ", 200, arguments.context))
        print(
            f"loss {mean_loss:.3f} after {arguments.steps} steps on {md.size()} ranks, "
            f"{count / seconds:.0f} characters/s"
        )
    md.shutdown()


if __name__ == "__main__":
    main()
