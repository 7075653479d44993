"""DistributedOptimizer: gradients as views of their buckets, and the same bits without."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mydist as md
from multiproc.arena_memory import arena_bytes, lies_in_arena
from multiproc.checks.models import expect_equal_parameters, loss_of, tiny_model
from multiproc.registry import NotHereError, check

Step = Callable[[torch.nn.Module, Any, int], None]


def wide_model() -> torch.nn.Sequential:
    """float32, with enough parameters for several buckets of 512 KiB; equal on all ranks."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(4, 300), *(torch.nn.Linear(300, 300) for _ in range(4))]
    return torch.nn.Sequential(*layers, torch.nn.Linear(300, 2))


def loss(model: torch.nn.Module, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * seed + md.rank())
    output: torch.Tensor = model(torch.rand(6, 4, generator=generator))
    return output.pow(2).mean()


def wrapped(model: torch.nn.Module, views: bool, **options: Any) -> Any:
    return md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=[(f"{views}.{name}", p) for name, p in model.named_parameters()],
        gradient_as_buffer_view=views,
        **options,
    )


def plain(model: torch.nn.Module, optimizer: Any, step: int) -> None:
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    loss(model, step).backward()
    optimizer.step()


def partly_used(model: torch.nn.Module, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    layers: Any = list(model)
    if (step + md.rank()) % 2 == 0:  # Other layers on other ranks.
        layers = [layers[0], layers[-1]]
    loss(torch.nn.Sequential(*layers), step).backward()
    optimizer.step()


def keeping_references(model: torch.nn.Module, optimizer: Any, step: int) -> None:
    kept = [(p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None]
    plain(model, optimizer, 0)
    for gradient, values in kept:
        assert torch.equal(gradient, values), "an earlier gradient has changed"


STEPS: dict[str, tuple[Step, dict[str, Any]]] = {
    "plain": (plain, {}),
    "partly_used": (partly_used, {}),
    "keeping_references": (keeping_references, {}),
    "groups": (plain, {"groups": 3}),
    "fp16": (plain, {"compression": md.Compression.fp16}),
    "bf16": (plain, {"compression": md.Compression.bf16}),
    "max": (plain, {"op": md.Max}),
}


@check(cases=[(name,) for name in STEPS])
def the_same_bits_with_views_and_without(name: str) -> None:
    step, options = STEPS[name]
    models = []
    for views in (True, False):
        model = wide_model()
        optimizer = wrapped(model, views, **options)
        for number in range(5):
            step(model, optimizer, number)
        models.append(model)
    for mine, other in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(mine, other)
    expect_equal_parameters(models[0])


@check(min_size=2, cases=[(True,), (False,)])
def gradients_stay_where_they_are(to_none: bool) -> None:
    model = wide_model()
    optimizer = wrapped(model, True)
    loss(model, 0).backward()
    optimizer.step()
    places = {p: p.grad.data_ptr() for p in model.parameters()}  # type: ignore[union-attr]
    reducer = optimizer._distribution.paths[0]
    names = sum(reducer.buckets(), [])
    assert names == [f"True.{name}" for name, _ in reversed(list(model.named_parameters()))]
    ((count, first_bytes, _, _),) = reducer.layouts()
    assert len(reducer.buckets()) == count
    # Where a message takes long, the first bucket may hold them all.
    assert count > 1 or reducer.slot_bytes() <= first_bytes
    assert reducer.slot_bytes() == sum(p.numel() * 4 for p in model.parameters())
    packed = md.stats()["pack_bytes"]
    for number in range(1, 20):
        optimizer.zero_grad(set_to_none=to_none)
        assert all((p.grad is None) == to_none for p in model.parameters())
        copied = reducer.copied_bytes()
        loss(model, number).backward()
        optimizer.step()
        assert all(p.grad is not None and p.grad.data_ptr() == places[p] for p in places)
        assert reducer.copied_bytes() - copied == (reducer.slot_bytes() if to_none else 0)
    md.barrier()
    assert md.stats()["pack_bytes"] == packed


def shares_memory() -> bool:
    return md.explain().facts["data path"].choice.startswith("shared memory")


@check(min_size=2, cases=[(True,), (False,)])
def gradients_lie_where_all_ranks_reach_them(to_none: bool) -> None:
    model = wide_model()
    optimizer = wrapped(model, True)
    for number in range(3):
        optimizer.zero_grad(set_to_none=to_none)
        loss(model, number).backward()
        optimizer.step()
        found = {
            n: lies_in_arena(p.grad) for n, p in model.named_parameters() if p.grad is not None
        }
        assert found == dict.fromkeys(dict(model.named_parameters()), shares_memory()), number
    assert not any(lies_in_arena(p) for p in model.parameters())  # Or the test sees it anywhere.


@check(min_size=2)
def what_is_fused_is_packed_where_all_ranks_reach_it() -> None:
    count, tensors = 1 << 19, 6  # More than anybody has fused before.
    packed, taken = md.stats()["pack_bytes"], arena_bytes()
    assert (taken > 0) == shares_memory()
    md.barrier()  # All have looked.
    total = 4 * count * tensors
    md.grouped_allreduce([torch.ones(count) for _ in range(tensors)], name="wide")
    md.barrier()  # Of what is counted as packed, too.
    assert md.stats()["pack_bytes"] - packed == total
    grown = arena_bytes() - taken
    assert grown >= md.local_size() * total // 2 if shares_memory() else grown == 0, grown
    md.barrier()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def shared_mappings() -> int:
    maps = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace")
    return sum("/dev/shm/" in line for line in maps.splitlines())


@check()
def memory_does_not_grow() -> None:
    model = wide_model()
    optimizer = wrapped(model, True)

    def steps(count: int) -> None:
        for number in range(count):
            plain(model, optimizer, number)

    steps(20)
    shared, resident = shared_mappings(), resident_bytes()
    steps(100)
    # One leaked copy of the gradients per step would be 150 MB, in shared memory as well.
    assert resident_bytes() - resident < 20_000_000
    assert shared_mappings() == shared


@check(min_size=2)
def errors_name_the_parameter_and_leave_the_rest_usable() -> None:
    model = tiny_model()
    optimizer = wrapped(model, True)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        optimizer.step()
    optimizer.zero_grad()
    layer: Any = model[0]
    layer.bias.data = torch.zeros(6 if md.rank() == 1 else 5).double()
    layer.weight.data = torch.ones(6 if md.rank() == 1 else 5, 4).double()
    last: Any = model[2]
    last.weight.data = torch.ones(2, 6 if md.rank() == 1 else 5).double()
    loss_of(model, md.rank(), 2).backward()
    try:
        optimizer.synchronize()
    except md.MismatchError as error:
        assert "True." in str(error) and "weight" in str(error), error
    else:
        raise AssertionError("no MismatchError")
    for parameter, size in ((layer.bias, (5,)), (layer.weight, (5, 4)), (last.weight, (2, 5))):
        parameter.data = torch.ones(size).double()
    for step in range(3, 5):
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        optimizer.step()
    expect_equal_parameters(model)


@check(min_size=2)
def explain_tells_about_the_buckets() -> None:
    if "MYDIST_BUCKET_SIZE_MB" in os.environ:
        raise NotHereError("nothing is measured where the size of buckets is set")
    model = wide_model()
    optimizer = wrapped(model, True)
    plain(model, optimizer, 0)
    facts = md.explain().facts
    assert {"backend", "data path", "kernels", "fusion", "latency", "throughput"} <= set(facts)
    assert facts["latency"].choice.endswith(" us") and facts["throughput"].choice.endswith(" GB/s")
    buckets = [fact for topic, fact in facts.items() if topic.startswith("buckets")]
    assert any(fact.choice.startswith("12 gradients in ") for fact in buckets)
    assert all("sqrt(" in fact.reason for fact in buckets)
    everyone = md.allgather_object((optimizer._distribution.paths[0].layouts(), str(md.explain())))
    assert len({tuple(layouts) for layouts, _ in everyone}) == 1
