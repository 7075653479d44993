"""What puts hooks somewhere takes them away with its last reference, without a collection."""

from __future__ import annotations

import contextlib
import gc
import shutil
import signal
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

import mydist as md
from multiproc.checks.models import expect_equal_parameters, tiny_model
from multiproc.registry import check


class OwnCompressor(md.Compressor):
    """Keeps gradients out of C++."""

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


def sequence(optimizer: torch.optim.Optimizer) -> SequentialLR:
    parts = [LinearLR(optimizer), CosineAnnealingLR(optimizer, 5)]
    return SequentialLR(optimizer, parts, milestones=[1])


# What is made beside the optimizer, before or after it is wrapped.
COMPANIONS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "none": lambda _: None,
    "step": lambda optimizer: StepLR(optimizer, 1),
    "plateau": ReduceLROnPlateau,
    "sequence": sequence,
    "warmup": lambda optimizer: md.WarmupLR(optimizer, 5),
    "both": lambda optimizer: (md.WarmupLR(optimizer, 5), StepLR(optimizer, 1)),
}


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@check(
    cases=[(name, order) for name in COMPANIONS for order in ("before", "after")]
    + [("step", "python"), ("step", "adasum")]
)
def made_anew_every_epoch(companion: str, order: str) -> None:
    model = tiny_model()
    md.broadcast_parameters(model.state_dict(), 0)
    ended: list[weakref.ref[Any]] = []
    with no_collection():
        for _ in range(3):
            optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
            if order != "after":
                beside = COMPANIONS[companion](optimizer)
            optimizer = md.DistributedOptimizer(
                optimizer,
                named_parameters=model.named_parameters(),
                compression=OwnCompressor if order == "python" else md.Compression.none,
                op=md.Adasum if order == "adasum" else md.Average,
            )
            if order == "after":
                beside = COMPANIONS[companion](optimizer)
            assert all(reference() is None for reference in ended)
            optimizer.zero_grad()
            model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
            optimizer.step()
            ended.append(weakref.ref(optimizer))
        del optimizer, beside
        assert ended[-1]() is None
        # Nobody is left to count backward passes.
        for _ in range(2):
            model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
    expect_equal_parameters(model)


@check()
def a_wrapping_that_fails_leaves_no_hooks() -> None:
    model = tiny_model()
    computed = torch.ones(2, requires_grad=True) * 2  # No leaf, so that it takes no hook.
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    plain.param_groups[0]["params"].append(computed)
    with no_collection():
        try:
            md.DistributedOptimizer(plain, compression=OwnCompressor)
        except (ValueError, RuntimeError):
            pass
        else:
            assert md.size() == 1  # Nothing is hooked there.
        for _ in range(2):
            model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()


@check()
def a_checkpoint_takes_its_handler_along() -> None:
    before = signal.getsignal(signal.SIGTERM)
    folder = tempfile.mkdtemp(prefix="mydist-lifetimes-")
    with no_collection():
        checkpoint = md.Checkpoint(folder, model=tiny_model())
        assert signal.getsignal(signal.SIGTERM) is not before
        del checkpoint
        assert signal.getsignal(signal.SIGTERM) is before
    shutil.rmtree(folder)
