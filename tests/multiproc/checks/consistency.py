"""check_consistency, and the check that an optimizer makes at its first step and every N steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import checked_every
from multiproc.reference import DTYPES, make
from multiproc.registry import check
from mydist import consistency


def last() -> int:
    return md.size() - 1


def others_text() -> str:
    """How an error shows all ranks but the last."""
    return "rank 0" if md.size() == 2 else f"ranks 0-{md.size() - 2}"


def model() -> torch.nn.Sequential:
    """The same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


def expect_mismatch(call: Callable[[], Any], *parts: str) -> str:
    """The call fails on every rank with all parts in its text; the job then goes on."""
    try:
        call()
    except md.MismatchError as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    texts = md.allgather_object(text)
    assert len(set(texts)) == 1, f"the ranks say different things: {texts}"
    for part in parts:
        assert part in text, f"'{part}' is not in: {text}"
    total = md.allreduce(torch.ones(3), op=md.Sum, name="after a mismatch")
    assert total.tolist() == [md.size()] * 3
    return text


@check()
def equal_parameters_pass() -> None:
    md.check_consistency(model())
    md.check_consistency(model().state_dict())
    md.check_consistency(model().named_parameters())
    md.check_consistency({})
    values = {str(dtype): make(0, dtype) for dtype in DTYPES}
    values["empty"], values["scalar"] = torch.ones(0, 3), torch.tensor(2.5)
    entries = list(values.items())
    # Modules may be made in any order.
    md.check_consistency(entries if md.rank() % 2 else entries[::-1])


@check(min_size=2)
def running_statistics_may_differ() -> None:
    module = torch.nn.BatchNorm1d(3)
    module(torch.randn(4, 3) + md.rank())
    md.check_consistency(module)
    expect_mismatch(
        lambda: md.check_consistency(module.state_dict()), "the values of parameter 'running_mean'"
    )


@check(min_size=2)
def another_value() -> None:
    diverged = model()
    if md.rank() == last():
        diverged[1].weight.data[1, 2] += 1e-3
        diverged[1].bias.data[0] = 7.0
    text = expect_mismatch(
        lambda: md.check_consistency(diverged),
        "check_consistency: the values of parameter '1.bias' differ between ranks:",
        f"  {others_text()}: hash ",
        f"  rank {last()}: hash ",
        "2 parameters differ: '1.bias', '1.weight'",
        "Make them equal with mydist.broadcast_parameters(model.state_dict(), root_rank=0)",
    )
    assert text.index(f"  {others_text()}:") < text.index(f"  rank {last()}:") or md.size() == 2
    md.broadcast_parameters(diverged.state_dict(), root_rank=0)
    md.check_consistency(diverged)


@check(min_size=2)
def a_missing_parameter() -> None:
    entries = {"a": torch.ones(1), "extra": torch.ones(2)}
    if md.rank() == last():
        del entries["extra"]
    expect_mismatch(
        lambda: md.check_consistency(entries),
        "check_consistency: parameter 'extra' is not on every rank:",
        f"  {others_text()}: present",
        f"  rank {last()}: missing",
        "Build the same model on every rank.",
    )


OTHER_KINDS: list[tuple[str, Mapping[str, Any], str, str]] = [
    ("shape", {"size": (3, 2)}, "[2, 3]", "[3, 2]"),
    ("shape", {"size": (6,)}, "[2, 3]", "[6]"),
    ("dtype", {"dtype": torch.float64}, "torch.float32", "torch.float64"),
    ("dtype", {"dtype": torch.bfloat16}, "torch.float32", "torch.bfloat16"),
    ("requires_grad", {"requires_grad": True}, "False", "True"),
]


@check(min_size=2, cases=[(index,) for index in range(len(OTHER_KINDS))])
def another_kind(index: int) -> None:
    word, other, usual, unusual = OTHER_KINDS[index]
    options: dict[str, Any] = {"size": (2, 3), **(other if md.rank() == last() else {})}
    named = {"net.w": torch.zeros(**options), "net.a": torch.zeros(2)}
    expect_mismatch(
        lambda: md.check_consistency(named),
        f"parameter 'net.w' has a different {word} on some ranks:",
        f"  {others_text()}: {usual}\n",
        f"  rank {last()}: {unusual}\n",
        "Build the same model on every rank.",
    )


@check(min_size=3)
def ranks_are_grouped_by_what_they_have() -> None:
    # Rank 0 is alone; the others agree and come first.
    value = torch.full((2,), 1.0 if md.rank() == 0 else 2.0)
    text = expect_mismatch(lambda: md.check_consistency({"v": value}))
    lines = text.splitlines()
    assert lines[1].startswith(f"  ranks 1-{last()}: hash "), text
    assert lines[2].startswith("  rank 0: hash "), text


def wrapped(module: torch.nn.Module, steps: int | None = None) -> Any:
    with checked_every(steps):
        return md.DistributedOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.1), named_parameters=module.named_parameters()
        )


def step(module: torch.nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    module(torch.ones(2, 3) * (md.rank() + 1)).sum().backward()
    optimizer.step()


@check(min_size=2)
def a_forgotten_broadcast_is_an_error_at_the_first_step() -> None:
    module = model()
    with torch.no_grad():
        module[0].weight += md.rank()
    optimizer = wrapped(module)
    before = [p.clone() for p in module.parameters()]
    expect_mismatch(
        lambda: step(module, optimizer),
        "check before step 1 of the optimizer: the values of parameter '0.weight' differ",
        "mydist.broadcast_parameters(model.state_dict(), root_rank=0) before the first step",
    )
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@check(min_size=2)
def a_parameter_that_one_rank_lacks_is_an_error_at_the_first_step() -> None:
    module = model()
    if md.rank() == last():
        module.register_parameter("only here", torch.nn.Parameter(torch.ones(1)))
    optimizer = wrapped(module)
    expect_mismatch(
        lambda: optimizer.synchronize(),
        "check before step 1 of the optimizer: parameter 'only here' is not on every rank:",
        f"rank {last()}: present",
        f"{others_text()}: missing",
    )


def diverge(module: torch.nn.Sequential) -> None:
    if md.rank() == last():
        with torch.no_grad():
            module[1].bias[0] += 0.5


@check(min_size=2)
def every_n_finds_a_later_divergence_at_the_next_check() -> None:
    module = model()
    optimizer = wrapped(module, 3)
    for made in range(6):
        step(module, optimizer)
        if made == 3:  # After the check before step 4; the next one is before step 7.
            diverge(module)
    expect_mismatch(
        lambda: step(module, optimizer),
        "check before step 7 of the optimizer: the values of parameter '1.bias' differ",
        f"  rank {last()}: hash",
        "They were equal at the previous check, so some ranks changed them later",
    )


@check(min_size=2, cases=[("clip_grad_norm_",), ("closure",)])
def other_ways_to_synchronize_check_as_well(way: str) -> None:
    module = model()
    optimizer = wrapped(module, 1)
    step(module, optimizer)
    diverge(module)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = module(torch.ones(2, 3)).sum()
        loss.backward()
        return loss

    def synchronizing() -> None:
        if way == "closure":
            optimizer.step(closure)
        else:
            closure()
            optimizer.clip_grad_norm_(1.0)

    expect_mismatch(synchronizing, "check before step 2 of the optimizer: the values of parameter")


@check(min_size=2)
def a_step_that_failed_can_be_made_after_a_broadcast() -> None:
    module = model()
    diverge(module)
    optimizer = wrapped(module)
    expect_mismatch(lambda: step(module, optimizer), "check before step 1 of the optimizer")
    expect_mismatch(optimizer.step, "check before step 1 of the optimizer")
    md.broadcast_parameters(module.state_dict(), root_rank=0)
    optimizer.step()
    step(module, optimizer)
    md.check_consistency(module)


@check(min_size=2)
def after_a_first_step_that_failed_another_optimizer_may_begin() -> None:
    module = model()
    diverge(module)
    refused = wrapped(module)
    expect_mismatch(lambda: step(module, refused), "check before step 1 of the optimizer")
    with torch.no_grad():
        module[1].bias.zero_()
    again = model()
    step(again, wrapped(again))
    step(module, refused)


@check(min_size=2)
def a_check_costs_one_gather_and_happens_once() -> None:
    module, calls = model(), []
    gather = consistency.allgather

    def counted(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        calls.append(tensor.numel() * tensor.element_size())
        return gather(tensor, **options)

    consistency.allgather = counted
    try:
        optimizer = wrapped(module)
        for _ in range(3):
            step(module, optimizer)
    finally:
        consistency.allgather = gather
    assert calls == [24], f"bytes sent by the calls: {calls}"


@check(min_size=3)
def a_process_set_is_compared_by_itself() -> None:
    members = md.add_process_set([0, last()])
    named = {"w": torch.full((3,), float(md.rank()))}
    if members.included():
        try:
            md.check_consistency(named, process_set=members)
        except md.MismatchError as error:
            lines = str(error).splitlines()
            assert lines[1].startswith("  rank 0: hash ") and len(lines) == 4, lines
            assert lines[2].startswith(f"  rank {last()}: hash "), lines
        else:
            raise AssertionError("no error")
        named["w"].zero_()
        md.check_consistency(named, process_set=members)
    else:
        try:
            md.check_consistency(named, process_set=members)
        except ValueError as error:
            assert f"check_consistency: rank {md.rank()} is not in" in str(error), str(error)
        else:
            raise AssertionError("a rank outside the set took part")
    md.remove_process_set(members)


@check(min_size=3)
def those_that_have_not_joined_are_compared() -> None:
    if md.rank() != 1:
        equal, other = torch.ones(2), torch.full((2,), float(md.rank()))
        md.check_consistency({"w": equal})
        try:
            md.check_consistency({"w": other})
        except md.MismatchError as error:
            assert "rank 0: hash" in str(error) and "rank 1" not in str(error), str(error)
        else:
            raise AssertionError("no error")
    md.join()
    expect_mismatch(
        lambda: md.check_consistency({"w": torch.full((2,), float(md.rank()))}), "rank 1: hash"
    )


@check(min_size=2)
def without_n_only_the_first_step_is_checked() -> None:
    module = model()
    optimizer = wrapped(module)
    step(module, optimizer)
    diverge(module)
    for _ in range(3):
        step(module, optimizer)


@check(min_size=2)
def minus_one_switches_the_check_off() -> None:
    module = model()
    diverge(module)
    optimizer = wrapped(module, -1)
    step(module, optimizer)


@check(min_size=2)
def after_a_join_the_steps_are_counted_anew() -> None:
    module = model()
    optimizer = wrapped(module, 2)
    # The last rank makes one step less than the others; two checks are due on the others.
    for _ in range(2 if md.rank() == last() else 3):
        step(module, optimizer)
    md.join()
    md.broadcast_parameters(module.state_dict(), root_rank=0)
    for _ in range(2):
        step(module, optimizer)
    diverge(module)
    made = 4 if md.rank() == last() else 5
    try:
        step(module, optimizer)
    except md.MismatchError as error:
        text = f"check before step {made + 1} of the optimizer: the values of parameter '1.bias'"
        assert text in str(error), str(error)
    else:
        raise AssertionError("no error")
