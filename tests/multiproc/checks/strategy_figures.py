"""What strategies cost, bytes and memory; and what explain() tells."""

from __future__ import annotations

from typing import Any

import torch

import mydist as md
from multiproc.checks.strategy_models import STRATEGIES, Trained, outer_adam, real
from multiproc.registry import check


def counted(trained: Trained, steps: int) -> int:
    """tensor_bytes of so many steps after the first one, which compares the ranks."""
    trained.step()
    before = md.stats()["tensor_bytes"]
    trained.step(steps)
    return md.stats()["tensor_bytes"] - before


@check(min_size=2)
def local_sgd_sends_an_eighth() -> None:
    synchronous, trained = real(None), real(md.LocalSGD(8), prefix="local.")
    gradients = sum(p.nbytes for p in trained.model.parameters())
    buffers = sum(b.nbytes for b in trained.model.buffers())
    all_bytes = counted(synchronous, 32)
    assert all_bytes == 32 * gradients, (all_bytes, gradients)
    # Beside the change: the buffers, and two numbers of 8 bytes.
    wanted = 4 * (gradients + buffers + 16)
    got = counted(trained, 32)
    assert got == wanted, (got, wanted, gradients, buffers)
    assert got <= all_bytes / 8 + 4 * (buffers + 16)


@check(min_size=2, cases=[(md.Compression.fp16,)])
def compression_halves_what_a_round_sends(compression: Any) -> None:
    plain = real(md.LocalSGD(2), torch.float32)
    halved = real(md.LocalSGD(2), torch.float32, prefix="halved.", compression=compression)
    gradients = sum(p.nbytes for p in plain.model.parameters())
    assert counted(plain, 8) - counted(halved, 8) == 4 * gradients / 2


COPIES = {
    **dict.fromkeys(("keep", "reset", "average", "weighted", "once", "post", "elastic"), 1),
    **dict.fromkeys(("block", "nesterov", "slow", "diloco", "streaming"), 2),
    "outer": 3,
}


@check(cases=[(name,) for name in COPIES])
def memory_is_what_the_documentation_promises(name: str) -> None:
    trained = real(STRATEGIES[name]())
    run = trained.optimizer._distribution.runs[0]
    assert run.strategy.bytes() == 0  # Before the first local step there is nothing.
    trained.step(9)
    trained.optimizer.finish()
    size = sum(p.nbytes for p in trained.model.parameters())
    outer = 0
    if name == "outer":
        outer = sum(entry["step"].nbytes for o in run.strategy._outer for entry in o.state.values())
        assert outer_adam.__name__ in run.choice()
    assert run.strategy.bytes() == COPIES[name] * size + outer
    held = [flat.nbytes for part in run.job.parts for flat in part.shared()]
    held += [
        value.nbytes
        for optimizer in getattr(run.strategy, "_outer", [])
        for entry in optimizer.state.values()
        for value in entry.values()
        if torch.is_tensor(value)
    ]
    assert run.strategy.bytes() == sum(held)


@check(cases=[(name,) for name in COPIES])
def explain_tells_the_strategy(name: str) -> None:
    trained = real(STRATEGIES[name]())
    run = trained.optimizer._distribution.runs[0]
    trained.step(6)
    trained.optimizer.finish()
    before = md.stats()["strategy_rounds"]
    trained.step(6)
    rounds = md.stats()["strategy_rounds"] - before
    assert rounds == {"once": 0}.get(name, 2)
    fact = md.explain().facts["communication"]
    assert fact.choice == run.strategy.describe()
    assert fact.choice.startswith(type(STRATEGIES[name]()).__name__ + "(")
    assert f"so far 12 steps, rounds: {run.job.rounds}; " in fact.reason
    assert f"take {run.strategy.bytes()} bytes" in fact.reason
    assert fact.choice in str(md.explain())
    del trained, run
    assert "communication" not in md.explain().facts
