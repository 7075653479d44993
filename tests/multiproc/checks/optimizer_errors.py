"""DistributedOptimizer: misuse is a ValueError that names the parameter or argument."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import time
from typing import Any

import torch
from soon import soon

import mydist as md
from multiproc.checks.models import (
    BY_PATH,
    COMPRESSIONS,
    expect_average,
    loss_of,
    raises,
    tiny_model,
    unchecked,
    wrapped,
)
from multiproc.registry import check


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


ARGUMENTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "passes 0": ({"backward_passes_per_step": 0}, ["backward_passes_per_step", "0"]),
    "predivide with Sum": (
        {"gradient_predivide_factor": 2.0, "op": md.Sum},
        ["gradient_predivide_factor", "Average"],
    ),
    "predivide 0": ({"gradient_predivide_factor": 0}, ["gradient_predivide_factor", "above 0"]),
    "op": ({"op": 77}, ["op is 77", "Average"]),
    "compression": ({"compression": "fp16"}, ["compression", "fp16"]),
    "num_groups and groups": ({"num_groups": 2, "groups": 2}, ["num_groups=2", "write groups"]),
    "num_groups -1": ({"num_groups": -1}, ["num_groups is -1", "at least 0"]),
    "predivide with Adasum": (
        {"gradient_predivide_factor": 2.0, "op": 5},
        ["gradient_predivide_factor", "op=Adasum", "Average"],
    ),
}


@check(cases=[(kind,) for kind in ARGUMENTS])
def bad_argument(kind: str) -> None:
    options, parts = ARGUMENTS[kind]
    model = tiny_model()
    raises(lambda: md.DistributedOptimizer(sgd(model), **options), *parts)


@check()
def what_is_no_process_set() -> None:
    for given in (3, "global", [0, 1]):
        options: Any = {"process_set": given}
        raises(
            lambda options=options: md.DistributedOptimizer(sgd(tiny_model()), **options),
            "process_set",
            repr(given),
            "expected a ProcessSet",
            kind=TypeError,
        )


@check()
def bad_names_groups_and_optimizers() -> None:
    model = tiny_model()
    twice = [("same", p) for p in model.parameters()]
    raises(lambda: md.DistributedOptimizer(sgd(model), named_parameters=twice), "'same'")
    first = next(iter(model.parameters()))
    raises(
        lambda: md.DistributedOptimizer(sgd(model), groups=[[first], [first]]),
        "groups[0] and groups[1]",
    )
    lbfgs = torch.optim.LBFGS(model.parameters())
    raises(lambda: md.DistributedOptimizer(lbfgs), "LBFGS", "line search")
    not_one: Any = model
    raises(lambda: md.DistributedOptimizer(not_one), "Sequential", "torch.optim.Optimizer")


@check()
def cannot_be_copied() -> None:
    optimizer = wrapped(tiny_model())
    raises(lambda: copy.deepcopy(optimizer), "state_dict()", kind=TypeError)
    raises(lambda: pickle.dumps(optimizer), "state_dict()", kind=TypeError)


@check(min_size=2, cases=BY_PATH)
def too_many_backwards(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    loss_of(model, md.rank()).backward()
    # Which parameter's hook runs first is the order of backward: the last layer.
    raises(lambda: loss_of(model, md.rank(), 1).backward(), "'2.", "backward_passes_per_step (1)")
    # The gradients are a mixture now; synchronizing says so, and the next step is clean.
    raises(optimizer.step, "'2.")
    optimizer.zero_grad()
    loss_of(model, md.rank(), 2).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank, 2))


@check(min_size=2, cases=BY_PATH)
def zero_grad_between_backward_and_step(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    loss_of(model, md.rank()).backward()
    with soon():
        raises(optimizer.zero_grad, "zero_grad()", "after backward()", ".weight'")
    optimizer.step()
    optimizer.zero_grad()


@check(min_size=2, cases=BY_PATH)
def gradient_replaced_between_backward_and_step(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    loss_of(model, md.rank()).backward()
    model[0].weight.grad = None
    raises(optimizer.step, "'0.weight'")
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
    with soon():
        raises(optimizer.step, "'2.", "was changed", "synchronize()")
    optimizer.zero_grad()
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))


@check(cases=[("Average",), ("Adasum",)])
def what_is_no_closure(op: str) -> None:
    optimizer = wrapped(tiny_model(), op=getattr(md, op))
    raises(lambda: optimizer.step(0.5), "step: closure is 0.5 (float)", "None", kind=TypeError)


@check(min_size=2)
def skip_synchronize_without_synchronize() -> None:
    model = tiny_model()
    optimizer = wrapped(model)
    loss_of(model, md.rank()).backward()

    def skip() -> None:
        with optimizer.skip_synchronize():
            optimizer.step()

    raises(skip, "skip_synchronize()", "call synchronize() first")
    optimizer.step()


@check(min_size=2)
def different_models_are_an_error_everywhere() -> None:
    width = 3 if md.rank() == 0 else 2
    model = torch.nn.Linear(width, 1)
    with unchecked():
        optimizer = wrapped(model)
    model(torch.ones(1, width)).sum().backward()
    raises(optimizer.step, "weight", kind=md.MismatchError)
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


@check(min_size=2)
def an_optimizer_that_was_given_up_frees_its_names() -> None:
    model = tiny_model()
    with unchecked():  # The next that is enqueued shall be a gradient.
        optimizer = wrapped(model)
    done = md.stats()["tensors"] + len(list(model.parameters()))
    loss_of(model, md.rank()).backward()
    optimizer._distribution.paths[0].remove()
    deadline = time.monotonic() + 30
    while md.stats()["tensors"] < done:
        assert time.monotonic() < deadline, "what backward had begun is still in flight"
    model = tiny_model()
    with unchecked():
        optimizer = wrapped(model)
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))


@check(min_size=2)
def wrapping_again_while_a_thread_waits() -> None:
    model = tiny_model()
    with unchecked():  # What the thread waits for shall be its gradients.
        optimizer = wrapped(model)
    if md.rank() != 0:
        md.barrier()
        loss_of(model, md.rank()).backward()
        optimizer.step()
        return
    loss_of(model, md.rank()).backward()
    caught: list[Exception] = []
    about_to_wait = threading.Event()

    def wait() -> None:
        about_to_wait.set()
        try:
            optimizer.synchronize()
        except ValueError as error:
            caught.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # The thread runs until it gives up the GIL, which is in the wait.
    try:
        thread = threading.Thread(target=wait)
        thread.start()
        about_to_wait.wait()
        optimizer._distribution.paths[0].remove()
    finally:
        sys.setswitchinterval(interval)
    md.barrier()
    thread.join()
    assert "took the gradients while synchronize() waited" in str(caught[0])
