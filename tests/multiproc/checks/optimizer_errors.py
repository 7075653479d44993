"""DistributedOptimizer: misuse is a ValueError that names the parameter or argument."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import expect_average, loss_of, tiny_model
from multiproc.checks.optimizer_modes import BY_PATH, COMPRESSIONS, wrapped
from multiproc.registry import check


def expect_error(call: Callable[[], Any], *parts: str, kind: type[Exception] = ValueError) -> None:
    try:
        call()
    except kind as error:
        for part in parts:
            assert part in str(error), f"'{part}' is not in: {error}"
    else:
        raise AssertionError(f"no {kind.__name__}; expected one with {parts}")


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


ARGUMENTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "passes 0": ({"backward_passes_per_step": 0}, ["backward_passes_per_step", "0"]),
    "passes -1": ({"backward_passes_per_step": -1}, ["backward_passes_per_step", "-1"]),
    "passes 1.5": ({"backward_passes_per_step": 1.5}, ["backward_passes_per_step", "1.5"]),
    "predivide with Sum": (
        {"gradient_predivide_factor": 2.0, "op": md.Sum},
        ["gradient_predivide_factor", "Average"],
    ),
    "predivide 0": ({"gradient_predivide_factor": 0}, ["gradient_predivide_factor", "above 0"]),
    "op": ({"op": 77}, ["op is 77", "Average"]),
    "groups 0": ({"groups": 0}, ["groups is 0"]),
    "groups text": ({"groups": "all"}, ["groups is str"]),
    "groups of numbers": ({"groups": [[1]]}, ["groups"]),
    "unknown parameter": ({"groups": [[torch.ones(5)]]}, ["groups[0]", "(5,)", "not a parameter"]),
    "compression": ({"compression": "fp16"}, ["compression", "fp16"]),
    "process set": ({"process_set": 3}, ["process_set"]),
    "names not pairs": ({"named_parameters": [torch.ones(1)]}, ["named_parameters", "pairs"]),
    "names missing": ({"named_parameters": []}, ["named_parameters does not name 4", "0.0"]),
}


@check(cases=[(kind,) for kind in ARGUMENTS])
def bad_argument(kind: str) -> None:
    options, parts = ARGUMENTS[kind]
    model = tiny_model()
    expect_error(lambda: md.DistributedOptimizer(sgd(model), **options), *parts)


@check()
def bad_names_groups_and_optimizers() -> None:
    model = tiny_model()
    twice = [("same", p) for p in model.parameters()]
    expect_error(lambda: md.DistributedOptimizer(sgd(model), named_parameters=twice), "'same'")
    first = next(iter(model.parameters()))
    expect_error(
        lambda: md.DistributedOptimizer(sgd(model), groups=[[first], [first]]),
        "groups[0] and groups[1]",
    )
    lbfgs = torch.optim.LBFGS(model.parameters())
    expect_error(lambda: md.DistributedOptimizer(lbfgs), "LBFGS", "line search")
    not_one: Any = model
    expect_error(lambda: md.DistributedOptimizer(not_one), "Sequential", "torch.optim.Optimizer")


@check()
def cannot_be_copied() -> None:
    optimizer = wrapped(tiny_model())
    expect_error(lambda: copy.deepcopy(optimizer), "state_dict()", kind=TypeError)
    expect_error(lambda: pickle.dumps(optimizer), "state_dict()", kind=TypeError)


@check(min_size=2, cases=BY_PATH)
def too_many_backwards(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    loss_of(model, md.rank()).backward()
    # Which parameter's hook runs first is the order of backward: the last layer.
    expect_error(
        lambda: loss_of(model, md.rank(), 1).backward(), "'2.", "backward_passes_per_step (1)"
    )
    # The gradients are a mixture now; synchronizing says so, and the next step is clean.
    expect_error(optimizer.step, "'2.")
    optimizer.zero_grad()
    loss_of(model, md.rank(), 2).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank, 2))


@check(min_size=2, cases=BY_PATH)
def zero_grad_between_backward_and_step(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    loss_of(model, md.rank()).backward()
    expect_error(optimizer.zero_grad, "zero_grad()", "after backward()", ".weight'")
    optimizer.step()
    optimizer.zero_grad()


@check(min_size=2, cases=BY_PATH)
def gradient_replaced_between_backward_and_step(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    loss_of(model, md.rank()).backward()
    model[0].weight.grad = None
    expect_error(optimizer.step, "'0.weight'")
    optimizer.zero_grad()
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))


@check(min_size=2, cases=BY_PATH)
def gradient_changed_in_place_between_backward_and_step(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    loss_of(model, md.rank()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
    expect_error(optimizer.step, "'", "synchronize()")
    optimizer.zero_grad()
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))


@check(min_size=2, cases=BY_PATH)
def sparse_gradient(path: str) -> None:
    model = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    expect_error(
        lambda: model(torch.tensor([1, 2])).sum().backward(), "'weight'", "sparse_as_dense=True"
    )
    del optimizer


@check(min_size=2)
def skip_synchronize_without_synchronize() -> None:
    model = tiny_model()
    optimizer = wrapped(model)
    loss_of(model, md.rank()).backward()

    def skip() -> None:
        with optimizer.skip_synchronize():
            optimizer.step()

    expect_error(skip, "skip_synchronize()", "call synchronize() first")
    optimizer.step()


@check(min_size=2)
def different_models_are_an_error_everywhere() -> None:
    width = 3 if md.rank() == 0 else 2
    model = torch.nn.Linear(width, 1)
    optimizer = wrapped(model)
    model(torch.ones(1, width)).sum().backward()
    expect_error(optimizer.step, "weight", kind=md.MismatchError)
    # The engine is fine: another optimizer trains on.
    other = tiny_model()
    optimizer = wrapped(other)
    loss_of(other, md.rank()).backward()
    optimizer.synchronize()
    expect_average(other, lambda rank: loss_of(other, rank))


@check(min_size=2)
def a_dropped_optimizer_leaves_no_hooks() -> None:
    model = tiny_model()
    optimizer = wrapped(model)
    loss_of(model, md.rank()).backward()
    optimizer.step()
    del optimizer
    gc.collect()
    for step in range(3):  # would be too many backwards for a hook that is left
        loss_of(model, md.rank(), step).backward()
