"""Gradients in shared memory and processes forked from a rank, as workers of a DataLoader are."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable

import torch

import mydist as md
from multiproc.registry import check


def in_child(look: Callable[[], None], meanwhile: Callable[[], None]) -> None:
    """Runs `look` in a forked child once this process has done `meanwhile`."""
    (told, tell), (read, answer) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        text = ""
        try:
            os.read(told, 1)
            look()
        except BaseException:
            text = traceback.format_exc()
        os.write(answer, text.encode())
        os._exit(0)
    os.close(answer)
    meanwhile()
    os.write(tell, b".")
    with os.fdopen(read) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    for end in (told, tell):
        os.close(end)
    assert text == "", f"in the child:\n{text}"


# One rank alone reduces nothing, so its children may go on with backward.
@check(min_size=2)
def a_child_has_gradients_of_its_own() -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Linear(50, 3))
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        gradient_as_buffer_view=True,
    )

    def step(seed: int) -> None:
        generator = torch.Generator().manual_seed(100 * seed + md.rank())
        optimizer.zero_grad(set_to_none=False)
        model(torch.rand(4, 40, generator=generator)).pow(2).mean().backward()
        optimizer.step()

    def values() -> list[torch.Tensor]:
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    step(0)
    step(1)
    before = values()
    assert len(before) == 4

    def look() -> None:
        for mine, wanted in zip(values(), before, strict=True):
            assert torch.equal(mine, wanted), "other values than at the fork"
        for p in model.parameters():
            assert p.grad is not None
            p.grad.fill_(7.0)
        # Accumulates first, and is then told that the child is no rank.
        try:
            model(torch.ones(1, 40)).sum().backward()
        except ValueError as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError("backward reduced gradients in a forked child")

    after: list[torch.Tensor] = []

    def meanwhile() -> None:
        step(2)
        after.extend(values())
        assert not all(torch.equal(a, b) for a, b in zip(after, before, strict=True))

    in_child(look, meanwhile)
    for mine, wanted in zip(values(), after, strict=True):
        assert torch.equal(mine, wanted), "the child has changed its parent's gradients"
    step(3)
    everyone = md.allgather_object([value.tolist() for value in values()])
    assert all(other == everyone[0] for other in everyone)
