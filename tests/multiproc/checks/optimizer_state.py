"""broadcast_optimizer_state: every optimizer, whatever state the ranks are in."""

from __future__ import annotations

from typing import Any

import torch

import mydist as md
from multiproc.checks.models import (
    loss_for,
    model_for,
    optimizer_classes,
    optimizer_for,
    raises,
)
from multiproc.checks.objects_state import everyone_equals_root
from multiproc.reference import raw
from multiproc.registry import check


def take_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    """Steps of this rank alone."""
    for step in range(count):
        optimizer.zero_grad()
        loss_for(model, md.rank(), step).backward()
        optimizer.step()


def flat(value: Any) -> Any:
    """Comparable: tensors become their type, shape and bytes."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), raw(value))
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [flat(item) for item in value]
    return value


@check(cases=[(name,) for name in optimizer_classes()])
def optimizer_state(name: str) -> None:
    model = model_for(name)
    optimizer = optimizer_for(name, model)
    root = md.size() - 1
    # The root has a history, rank 0 another one, the others none.
    if md.rank() in (0, root):
        take_steps(model, optimizer, 2 + md.rank())
    optimizer.param_groups[0]["lr"] = 0.01 * (md.rank() + 1)
    parameters = [raw(p) for p in model.parameters()]
    md.broadcast_optimizer_state(optimizer, root_rank=root)
    assert parameters == [raw(p) for p in model.parameters()], "a parameter changed"
    assert optimizer.param_groups[0]["lr"] == 0.01 * (root + 1)
    state = flat(optimizer.state_dict())
    everyone_equals_root(state, root)
    assert state["state"], "the history of the root is gone"
    # After parameters have been sent, too, the ranks train in step.
    md.broadcast_parameters(model.state_dict(), root_rank=root)
    wrapped = md.DistributedOptimizer(optimizer)
    loss_for(model, md.rank()).backward()
    wrapped.step()
    everyone_equals_root([raw(p) for p in model.parameters()], root)
    everyone_equals_root(flat(wrapped.state_dict()), root)


@check()
def optimizer_state_none_numbers_and_nested() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=torch.tensor(0.5 + md.rank()))
    if md.rank() == 0:
        optimizer.state[parameter] = {
            "none": None,
            "number": 3,
            "nested": {"list": [torch.arange(3), (1.5, "text")], "empty": torch.empty(0)},
        }
    else:
        optimizer.state[parameter] = {"junk": torch.ones(7), "number": "wrong"}
    md.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state[parameter]
    assert state["none"] is None and state["number"] == 3 and "junk" not in state
    assert state["nested"]["list"][0].tolist() == [0, 1, 2]
    assert state["nested"]["list"][1] == (1.5, "text")
    assert float(optimizer.param_groups[0]["lr"]) == 0.5


@check()
def optimizer_state_of_a_wrapped_optimizer() -> None:
    torch.manual_seed(md.rank())
    model = torch.nn.Linear(2, 2)
    md.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = md.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.1 * (md.rank() + 1)),
        named_parameters=model.named_parameters(),
    )
    md.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
    assert optimizer.param_groups[0]["lr"] == 0.1
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    everyone_equals_root(flat(optimizer.state_dict()), 0)


@check()
def optimizer_state_of_lbfgs_is_refused() -> None:
    optimizer = torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))])
    raises(lambda: md.broadcast_optimizer_state(optimizer, root_rank=0), "LBFGS", "a new LBFGS")


@check(min_size=2)
def optimizer_state_with_other_parameters_is_an_error_everywhere() -> None:
    count = 2 if md.rank() == 0 else 1
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1)) for _ in range(count)], lr=1)
    raises(
        lambda: md.broadcast_optimizer_state(optimizer, root_rank=0),
        "rank 0: [2]",
        "rank 1: [1]",
        kind=md.MismatchError,
    )


@check(cases=[(name,) for name in optimizer_classes()])
def before_the_first_step(name: str) -> None:
    """The root has no history; what the others have goes."""
    model = model_for(name)
    optimizer = md.DistributedOptimizer(optimizer_for(name, model))
    fresh = flat(optimizer.state_dict())
    if md.rank() != 0:
        other = model_for(name)
        inner = optimizer_for(name, other)
        take_steps(other, inner, md.rank())
        optimizer.load_state_dict(inner.state_dict())
    parameters = [raw(p) for p in model.parameters()]
    md.broadcast_optimizer_state(optimizer, root_rank=0)
    assert flat(optimizer.state_dict()) == fresh
    assert parameters == [raw(p) for p in model.parameters()], "a parameter changed"
    loss_for(model, md.rank()).backward()
    optimizer.step()
    everyone_equals_root(flat(optimizer.state_dict()), 0)


@check()
def tensors_that_fit_stay_where_they_are() -> None:
    """Schedulers and fused kernels may hold on to them."""
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    rate = torch.tensor(0.5 + md.rank())
    optimizer = torch.optim.SGD([parameter], lr=rate)
    kept = torch.full((2, 3), float(md.rank()))
    optimizer.state[parameter] = {"momentum_buffer": kept, "other": torch.ones(md.rank() + 1)}
    md.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == 0.5
    assert optimizer.state[parameter]["momentum_buffer"].data_ptr() == kept.data_ptr()
    assert not kept.any() and optimizer.state[parameter]["other"].shape == (1,)


@check()
def the_layout_in_memory_is_that_of_the_root() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    values = torch.arange(96.0).reshape(2, 3, 4, 4)
    if md.rank() == 0:
        parameter.grad = values.to(memory_format=torch.channels_last)
        optimizer.step()
    md.broadcast_optimizer_state(optimizer, root_rank=0)
    buffer = optimizer.state[parameter]["momentum_buffer"]
    assert torch.equal(buffer, values)
    assert buffer.is_contiguous(memory_format=torch.channels_last)


BAD: list[tuple[str, Any, Any, type[Exception], list[str]]] = [
    ("no optimizer", "model", 0, ValueError, ["Linear", "broadcast_parameters"]),
    ("root too large", "optimizer", 99, ValueError, ["root_rank", "99"]),
    ("root negative", "optimizer", -1, ValueError, ["root_rank", "-1"]),
    ("root a float", "optimizer", 0.0, TypeError, ["root_rank", "0.0", "int"]),
    ("root a bool", "optimizer", True, TypeError, ["root_rank", "True", "int"]),
    ("root a text", "optimizer", "0", TypeError, ["root_rank", "'0'", "int"]),
]


@check(cases=[(case[0],) for case in BAD])
def bad_arguments(case: str) -> None:
    _, what, root, kind, parts = next(entry for entry in BAD if entry[0] == case)
    model = torch.nn.Linear(2, 2)
    given: Any = model if what == "model" else torch.optim.SGD(model.parameters(), lr=0.1)
    raises(lambda: md.broadcast_optimizer_state(given, root_rank=root), *parts, kind=kind)
