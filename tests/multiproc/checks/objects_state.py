"""broadcast_object, allgather_object, broadcast_parameters and broadcast_optimizer_state."""

from __future__ import annotations

from typing import Any

import torch

import mydist as md
from multiproc.reference import raw
from multiproc.registry import check


def everyone_equals_root(value: Any, root: int) -> None:
    values = md.allgather_object(value)
    assert all(other == values[root] for other in values), values


@check()
def objects_from_every_root() -> None:
    for root in range(md.size()):
        mine = {"rank": md.rank(), "text": "x" * 1000 * md.rank(), "none": None}
        got = md.broadcast_object(mine, root_rank=root, name=f"object.{root}")
        assert got == {"rank": root, "text": "x" * 1000 * root, "none": None}


@check()
def objects_of_all_ranks() -> None:
    got = md.allgather_object([md.rank()] * (50 * md.rank()), name="objects")
    assert got == [[rank] * (50 * rank) for rank in range(md.size())]
    assert md.allgather_object(None) == [None] * md.size()


@check()
def an_object_that_cannot_be_pickled_is_an_error_everywhere() -> None:
    bad = (lambda: 0) if md.rank() == 0 else 1
    for call in (md.broadcast_object, md.allgather_object):
        try:
            call(bad)
        except md.MydistError as error:
            assert md.rank() != 0 and "rank 0" in str(error) and "pickle" in str(error).lower()
        except Exception as error:  # pickle's own, whose type depends on the Python version
            assert md.rank() == 0 and "pickle" in str(error).lower() + type(error).__name__.lower()
        else:
            raise AssertionError("no error")
    assert md.broadcast_object(md.rank(), 0) == 0


@check()
def parameters_of_a_model() -> None:
    torch.manual_seed(md.rank())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model.register_parameter("frozen", torch.nn.Parameter(torch.rand(2), requires_grad=False))
    root = md.size() - 1
    md.broadcast_parameters(model.state_dict(), root_rank=root)
    everyone_equals_root({k: raw(v) for k, v in model.state_dict().items()}, root)
    torch.manual_seed(md.rank() + 10)
    other = torch.nn.Linear(3, 4)
    md.broadcast_parameters(list(other.named_parameters()), root_rank=0)
    everyone_equals_root({k: raw(v) for k, v in other.state_dict().items()}, 0)


@check()
def parameters_bad_arguments() -> None:
    model = torch.nn.Linear(2, 2)
    cases: list[tuple[Any, str]] = [
        (model.named_parameters(), "generator"),
        ([torch.ones(1)], "pairs"),
        ({"a": 3}, "broadcast_object"),
        ([("a", torch.ones(1)), ("a", torch.ones(1))], "twice"),
        (5, "int"),
    ]
    for params, part in cases:
        try:
            md.broadcast_parameters(params, root_rank=0)
        except ValueError as error:
            assert part in str(error), str(error)
        else:
            raise AssertionError(f"{params} was accepted")


def optimizer_classes() -> list[str]:
    """Every optimizer of torch.optim but the base class and LBFGS."""
    return sorted(
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type)
        and issubclass(value, torch.optim.Optimizer)
        and value not in (torch.optim.Optimizer, torch.optim.LBFGS)
    )


def made(name: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A small model and its optimizer; Muon takes matrices only, SparseAdam sparse gradients."""
    model: torch.nn.Module = torch.nn.Linear(3, 4, bias=name != "Muon")
    if name == "SparseAdam":
        model = torch.nn.Embedding(5, 3, sparse=True)
    options: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {}
    return model, getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)


def take_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        if isinstance(model, torch.nn.Embedding):
            model(torch.tensor([0, 1, 1])).pow(2).sum().backward()
        else:
            model(torch.rand(2, 3)).pow(2).sum().backward()
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
    torch.manual_seed(md.rank())
    model, optimizer = made(name)
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
    take_steps(model, optimizer, 1)


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
    try:
        md.broadcast_optimizer_state(optimizer, root_rank=0)
    except ValueError as error:
        assert "LBFGS" in str(error)
    else:
        raise AssertionError("LBFGS was accepted")


@check(min_size=2)
def optimizer_state_with_other_parameters_is_an_error_everywhere() -> None:
    count = 2 if md.rank() == 0 else 1
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1)) for _ in range(count)], lr=1)
    try:
        md.broadcast_optimizer_state(optimizer, root_rank=0)
    except md.MismatchError as error:
        assert "rank 0: [2]" in str(error) and "rank 1: [1]" in str(error), str(error)
    else:
        raise AssertionError("different parameter groups were accepted")
