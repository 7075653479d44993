"""DistributedOptimizer trains as one process does on the average of all ranks' gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import mydist as md
from multiproc.checks.models import (
    BY_PATH,
    COMPRESSIONS,
    batch,
    expect_equal_parameters,
    expect_same_parameters,
    gradients,
    loss_of,
    tiny_model,
    wrapped,
)
from multiproc.registry import check

Model = torch.nn.Module
Loss = Callable[[Any, int, int], torch.Tensor]


class ScaledCompressor(md.Compressor):
    """A user's own compressor: travels as float32, halved."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor / 2).float(), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx) * 2


# ---- how a step is taken: `backward(part)` computes the gradients of one loss ----

Backward = Callable[[int], Any]
Way = Callable[[Model, Any, Backward], None]


def plain(model: Model, optimizer: Any, backward: Backward) -> None:
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    backward(0)
    optimizer.step()


def zeroed(model: Model, optimizer: Any, backward: Backward) -> None:
    optimizer.zero_grad(set_to_none=False)
    assert not any(p.grad is not None and p.grad.any() for p in model.parameters())
    backward(0)
    optimizer.step()


def synchronized(model: Model, optimizer: Any, backward: Backward) -> None:
    optimizer.zero_grad()
    backward(0)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()


def in_a_closure(model: Model, optimizer: Any, backward: Backward) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = backward(0)
        return loss

    assert isinstance(optimizer.step(closure), torch.Tensor)


def three_backwards(model: Model, optimizer: Any, backward: Backward) -> None:
    optimizer.zero_grad()
    for part in range(3):
        backward(part)
    optimizer.step()


def two_backwards_unsynchronized(model: Model, optimizer: Any, backward: Backward) -> None:
    optimizer.zero_grad()
    with optimizer.no_sync():
        backward(0)
        with optimizer.no_sync():
            backward(1)
    backward(2)
    optimizer.step()


def unsynchronized(model: Model, optimizer: Any, backward: Backward) -> None:
    optimizer.zero_grad()
    with optimizer.no_sync():
        backward(0)
    optimizer.step()


def with_data_reassigned(model: Model, optimizer: Any, backward: Backward) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
        parameter.grad = None
    plain(model, optimizer, backward)


# ---- models with something special about them, and their losses ----


def branches() -> Model:
    torch.manual_seed(0)
    return torch.nn.ModuleList(torch.nn.Linear(4, 2) for _ in range(3)).double()


def loss_of_one_branch(model: Any, rank: int, step: int) -> torch.Tensor:
    """Which parameters are unused differs by rank and step."""
    return loss_of(model[(rank + step) % 3], rank, step)


def tied() -> Model:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model.double()


def loss_of_tied(model: Any, rank: int, step: int) -> torch.Tensor:
    loss: torch.Tensor = model(batch(rank, step)[0]).pow(2).mean()
    return loss


def odd_shapes() -> Model:
    """A transposed parameter, a scalar and an empty one."""
    start = torch.arange(12.0, dtype=torch.float64).view(3, 4).t()
    model = torch.nn.Module()
    model.transposed = torch.nn.Parameter(start)
    model.scalar = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    model.empty = torch.nn.Parameter(torch.empty(0, 3, dtype=torch.float64))
    return model


def loss_of_odd_shapes(model: Any, rank: int, step: int) -> torch.Tensor:
    factor = torch.arange(12.0, dtype=torch.float64).view(4, 3) * (rank + step + 1)
    loss: torch.Tensor = (model.transposed * factor).sum() + model.empty.sum()
    return loss + model.scalar * (rank + 1)


def embedding() -> Model:
    torch.manual_seed(0)
    return torch.nn.Embedding(6, 2, sparse=True).double()


def loss_of_embedding(model: Any, rank: int, step: int) -> torch.Tensor:
    loss: torch.Tensor = model(torch.tensor([(rank + step) % 6, 5])).sum()
    return loss


def checkpointed(reentrant: bool) -> Loss:
    def loss(model: Any, rank: int, step: int) -> torch.Tensor:
        inputs, targets = batch(rank, step)
        hidden = checkpoint(model[0], inputs.requires_grad_(), use_reentrant=reentrant)
        return torch.nn.functional.mse_loss(model[2](model[1](hidden)), targets)

    return loss


def groups_of_parameters(model: Any) -> dict[str, Any]:
    return {"groups": [[next(model[0].parameters()), list(model[2].parameters())[1]]]}


@dataclass
class Case:
    """What is trained, how, and what the reference computes."""

    way: Way = plain
    parts: int = 1  # Losses in a step.
    model: Callable[[], Model] = tiny_model
    loss: Loss = loss_of
    loss_of_reference: Loss | None = None  # None: `loss`.
    options: dict[str, Any] | Callable[[Model], dict[str, Any]] | None = None
    sums: bool = False
    tolerance: float = 1e-10


CASES = {
    "plain": Case(),
    "zeroed": Case(zeroed),
    "synchronized": Case(synchronized),
    "closure": Case(in_a_closure),
    "several backwards": Case(three_backwards, 3, options={"backward_passes_per_step": 3}),
    "no_sync": Case(two_backwards_unsynchronized, 3),
    "no_sync only": Case(unsynchronized),
    "data reassigned": Case(with_data_reassigned),
    "groups 1": Case(options={"groups": 1}),
    "groups 2": Case(options={"groups": 2}),
    "groups 100": Case(options={"groups": 100}),
    "groups of parameters": Case(options=groups_of_parameters),
    "Sum": Case(options={"op": md.Sum}, sums=True),
    "predivide": Case(options={"gradient_predivide_factor": 3.0}),
    "predivide in groups": Case(options={"gradient_predivide_factor": 2.0, "groups": 3}),
    "unused": Case(model=branches, loss=loss_of_one_branch),
    "tied": Case(model=tied, loss=loss_of_tied),
    "odd shapes": Case(model=odd_shapes, loss=loss_of_odd_shapes),
    "sparse as dense": Case(
        model=embedding, loss=loss_of_embedding, options={"sparse_as_dense": True}
    ),
    "checkpointed": Case(loss=checkpointed(False), loss_of_reference=loss_of),
    "reentrant": Case(loss=checkpointed(True), loss_of_reference=loss_of),
}
COMPRESSORS = COMPRESSIONS | {"own": ScaledCompressor}
EVERY_CASE = [
    *[(name, *path) for name in CASES for path in BY_PATH],
    *[(name, "own") for name in ("plain", "groups 1", "groups 2")],
]


@check(cases=EVERY_CASE)
def as_in_one_process(name: str, path: str) -> None:
    case = CASES[name]
    model = case.model()
    options = case.options(model) if callable(case.options) else case.options or {}
    names = model.named_parameters(remove_duplicate=False)
    compression = COMPRESSORS[path]
    optimizer = wrapped(model, named_parameters=names, compression=compression, **options)
    reference = copy.deepcopy(model)
    for module in reference.modules():
        if isinstance(module, torch.nn.Embedding):
            module.sparse = False
    of_one_process = torch.optim.SGD(reference.parameters(), lr=0.1)
    tolerance = 1e-5 if path == "own" else case.tolerance
    for step in range(3):

        def backward(part: int, step: int = step) -> torch.Tensor:
            loss = case.loss(model, md.rank(), 10 * step + part)
            loss.backward()
            return loss

        def loss_on(rank: int, step: int = step) -> torch.Tensor:
            loss = case.loss_of_reference or case.loss
            losses = [loss(reference, rank, 10 * step + part) for part in range(case.parts)]
            return torch.stack(losses).sum()

        case.way(model, optimizer, backward)
        everyone = [
            gradients(reference, lambda rank=rank: loss_on(rank)) for rank in range(md.size())
        ]
        for key, parameter in reference.named_parameters():
            total = torch.stack([of_rank[key] for of_rank in everyone]).sum(0)
            parameter.grad = total if case.sums else total / md.size()
        of_one_process.step()
        expect_same_parameters(model, reference, tolerance)
    expect_equal_parameters(model)


@check(cases=[("none",), ("fp16",), ("bf16",)])
def compression(kind: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=getattr(md.Compression, kind))
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    tolerance = {"none": 1e-12, "fp16": 2e-3, "bf16": 2e-2}[kind]
    everyone = [
        gradients(model, lambda rank=rank: loss_of(model, rank)) for rank in range(md.size())
    ]
    for name, parameter in model.named_parameters():
        wanted = torch.stack([g[name] for g in everyone]).mean(0)
        scale = max(float(g[name].abs().max()) for g in everyone)
        assert parameter.grad is not None and parameter.grad.dtype == torch.float64
        assert float((parameter.grad - wanted).abs().max()) <= tolerance * scale, name
        if kind != "none" and md.size() > 1:
            assert not torch.equal(parameter.grad, wanted), f"{name} travelled uncompressed"
    optimizer.step()
    expect_equal_parameters(model)
