"""broadcast_object, allgather_object and broadcast_parameters."""

from __future__ import annotations

import re
import sys
import threading
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
    bad = threading.Lock() if md.rank() == 0 else 1
    for call in (md.broadcast_object, md.allgather_object):
        try:
            call(bad)
        except md.MydistError as error:
            assert md.rank() != 0
            text = str(error)
        except Exception as error:  # pickle's own, whose type depends on the Python version
            assert md.rank() == 0 and "pickle" in str(error).lower() + type(error).__name__.lower()
            (text,) = error.__notes__
        else:
            raise AssertionError("no error")
        name = re.sub(r"noname\.\d+", "noname", text)
        expected = (
            f"{call.__name__} '{call.__name__}.noname': could not pickle the object of rank 0"
        )
        assert f"{expected} (lock): TypeError" in name, text
    assert md.broadcast_object(md.rank(), 0) == 0


@check()
def functions_and_classes_without_a_name_travel_whole() -> None:
    factor = 3 + md.rank()

    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

    triple = md.broadcast_object(lambda x: factor * x, 0)
    assert triple(2) == 6
    assert md.broadcast_object(Local(5), 0).value == 5
    assert md.broadcast_object(Local, 0)(7).value == 7
    assert [f(2) for f in md.allgather_object(lambda x: factor * x)] == [
        2 * (3 + rank) for rank in range(md.size())
    ]


class Both:
    """Stands for a class that the scripts of all ranks define."""


def only_in_main(name: str) -> type:
    """A class that the script of this rank alone defines."""
    made = type(name, (), {"__module__": "__main__", "value": 11})
    setattr(sys.modules["__main__"], name, made)
    return made


@check()
def a_class_of_one_ranks_script_travels_whole() -> None:
    assert type(md.broadcast_object(Both(), 0)) is Both  # By name where that will do.
    mine = only_in_main("OnlyHere")() if md.rank() == 0 else None
    assert md.broadcast_object(mine, 0).value == 11
    mine = only_in_main(f"OnlyOn{md.rank()}")()
    assert [one.value for one in md.allgather_object(mine)] == [11] * md.size()


@check()
def a_function_of_the_script_is_the_senders() -> None:
    mine = eval("lambda: owner", {"owner": md.rank(), "__name__": "__main__"})
    mine.__name__ = mine.__qualname__ = "of_the_script"
    vars(sys.modules["__main__"])["of_the_script"] = mine
    root = md.size() - 1
    assert md.broadcast_object(mine, root)() == root
    assert [f() for f in md.allgather_object(mine)] == list(range(md.size()))


class Touchy:
    """Cannot be rebuilt on a rank that is not its own."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild_touchy, (self.rank,)


def rebuild_touchy(rank: int) -> Touchy:
    if md.rank() != rank:
        raise KeyError("not here")
    return Touchy(rank)


def expect_error(call: str, *parts: str) -> None:
    try:
        getattr(md, call)(Touchy(md.rank()), name="touchy")
    except md.MydistError as error:
        for part in (call, "'touchy'", "Touchy", "KeyError", "not here", *parts):
            assert part in str(error), str(error)
    else:
        raise AssertionError("no error")


@check(min_size=2)
def an_object_that_cannot_be_rebuilt_is_an_error_everywhere() -> None:
    expect_error("broadcast_object", "of rank 0", "on rank 1")
    expect_error("allgather_object", "of rank 1", "on rank 0")
    assert md.allgather_object(md.rank()) == list(range(md.size()))


class Mute(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unwilling:
    def __reduce__(self) -> tuple[Any, ...]:
        raise Mute


@check(min_size=2)
def an_error_without_a_text_is_named_everywhere() -> None:
    bad = Unwilling() if md.rank() == 0 else 1
    for call in (md.broadcast_object, md.allgather_object):
        try:
            call(bad)
        except Mute:
            assert md.rank() == 0
        except md.MydistError as error:
            text = "rank 0 (Unwilling): Mute (its text is unavailable: __str__ raised RuntimeError)"
            assert md.rank() != 0 and text in str(error), error
        else:
            raise AssertionError("no error")


@check(min_size=3)
def in_a_process_set_the_global_rank_is_named() -> None:
    last_two = md.add_process_set([md.size() - 2, md.size() - 1])
    last = md.size() - 1
    bad = threading.Lock() if md.rank() == last else 1
    if last_two.included():
        try:
            md.allgather_object(bad, process_set=last_two)
        except md.MydistError as error:
            assert md.rank() != last and f"rank {last} (lock): " in str(error), error
        except Exception:  # pickle's own, whose type depends on the Python version
            assert md.rank() == last
        else:
            raise AssertionError("no error")
    md.remove_process_set(last_two)


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
    for root, kind in ((md.size(), ValueError), (-1, ValueError), ("0", TypeError)):
        given: Any = root
        try:
            md.broadcast_parameters(model.state_dict(), root_rank=given)
        except kind as error:
            assert f"root_rank is {root!r}" in str(error), str(error)
        else:
            raise AssertionError(f"root_rank {root!r} was accepted")
