"""Trains a click model whose embeddings lie on servers, in a table of 10,000,000 rows.

    mydistrun -np 2 --servers 1 python examples/train_embedding.py

A rank holds no embedding. Each step pulls the rows that its batch names, and backward() pushes
their gradients to the servers, which apply Adagrad. A row takes memory once it has been touched.
The dense part is small; its gradients are averaged over all ranks. The clicks are generated: users
and items have hidden tastes, and a click is likely where the two agree. What a table of embeddings
needs is marked (1) to (4).
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional

import mydist as md

TASTES = 8
SCATTER = 2_654_435_761  # Has no factor in common with a power of 10, so rows stay different.


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the table: a power of 10")
    parser.add_argument("--seen", type=int, default=2000, help="users, and items, of the clicks")
    parser.add_argument("--width", type=int, default=16, help="numbers of a row")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch-size", type=int, default=1024, help="impressions per rank")
    parser.add_argument("--lr", type=float, default=0.1, help="of the embeddings")
    parser.add_argument("--dense-lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Clicks:
    """Impressions: a user sees an item, and clicks on it or not."""

    def __init__(self, seen: int, rows: int, seed: int) -> None:
        hidden = torch.Generator().manual_seed(seed)  # The same tastes on all ranks …
        self.users = 2 * torch.rand(seen, TASTES, generator=hidden) - 1
        self.items = 2 * torch.rand(seen, TASTES, generator=hidden) - 1
        self.seen, self.rows = seen, rows
        self.random = torch.Generator().manual_seed(seed + 1 + md.rank())  # … other impressions.

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows of users and items [count, 2], clicks [count], and the true log odds [count]."""
        # Few users and items are in many impressions.
        chosen = (self.seen * torch.rand(count, 2, generator=self.random) ** 2).long()
        odds = 3 * (self.users[chosen[:, 0]] * self.items[chosen[:, 1]]).sum(dim=1)
        clicks = torch.rand(count, generator=self.random) < torch.sigmoid(odds)
        numbers = chosen + torch.tensor([0, self.seen])
        return numbers * SCATTER % self.rows, clicks.float(), odds


class ClickModel(nn.Module):
    """The log odds of a click, from the embeddings of user and item."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(3 * width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        user, item = embeddings.unbind(dim=1)
        both = user * item
        return self.dense(torch.cat([user, item, both], dim=1)).squeeze(1) + both.sum(dim=1)


def train(table: md.ps.RowTable, model: ClickModel, clicks: Clicks, arguments) -> None:
    # (2) The optimizer knows the dense part alone.
    optimizer = md.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=arguments.dense_lr),
        named_parameters=model.named_parameters(),
    )
    md.broadcast_parameters(model.state_dict(), root_rank=0)
    every = max(1, arguments.steps // 4)
    for step in range(1, arguments.steps + 1):
        rows, clicked, _ = clicks.draw(arguments.batch_size)
        optimizer.zero_grad()
        # (3) Pulls the rows [batch, 2, width].
        odds = model(table.embedding(rows))
        loss = functional.binary_cross_entropy_with_logits(odds, clicked)
        loss.backward()  # (4) Pushes their gradients.
        optimizer.step()
        if step % every == 0 and md.rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")


@torch.no_grad()
def judge(table: md.ps.RowTable, model: ClickModel, clicks: Clicks) -> dict[str, float]:
    """On new impressions of all ranks: the loss, the least one possible, and the accuracy."""
    rows, clicked, true_odds = clicks.draw(8192)
    odds = model(table.embedding(rows))
    loss = functional.binary_cross_entropy_with_logits
    metrics = md.Metrics()
    is_right = (odds > 0) == (clicked > 0.5)
    metrics.update(loss=loss(odds, clicked), least=loss(true_odds, clicked))
    metrics.update(accuracy=is_right.float().mean())
    return metrics.compute()


def main() -> None:
    arguments = parse_arguments()
    md.init()
    torch.manual_seed(arguments.seed)
    # (1) On the servers. Async: a rank waits for no other one here.
    table = md.ps.RowTable(
        "users and items",
        rows=arguments.rows,
        width=arguments.width,
        rule=md.ps.Adagrad(lr=arguments.lr),
        init=md.ps.Uniform(0.05),
        consistency=md.ps.Async(),
    )
    model = ClickModel(arguments.width)
    clicks = Clicks(arguments.seen, arguments.rows, arguments.seed)
    start = time.perf_counter()
    train(table, model, clicks, arguments)
    seconds = time.perf_counter() - start
    md.barrier()  # All pushes of all ranks have been applied.
    found = judge(table, model, clicks)
    if md.rank() == 0:
        impressions = arguments.steps * arguments.batch_size * md.size()
        # A row has its numbers and their sums of squares, float32.
        most, touched = (8 * arguments.width * rows for rows in (table.rows, 2 * arguments.seen))
        print(
            f"test loss {found['loss']:.4f} (at best {found['least']:.4f}), accuracy "
            f"{found['accuracy']:.4f}, {impressions / seconds:.0f} impressions/s"
        )
        print(
            f"at most {2 * arguments.seen:,} of {table.rows:,} rows are touched: "
            f"{touched / 1e6:.2f} MB on the servers instead of {most / 1e6:.0f} MB"
        )
    md.shutdown()


if __name__ == "__main__":
    main()
