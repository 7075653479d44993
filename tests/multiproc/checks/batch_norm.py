"""SyncBatchNorm: forward and backward of one process that has the whole batch."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch

import mydist as md
from multiproc.checks.process_sets import added
from multiproc.reference import expect_near, make
from multiproc.registry import check

CHANNELS = 3
LOCAL: dict[int, Callable[..., torch.nn.Module]] = {
    2: torch.nn.BatchNorm1d,
    3: torch.nn.BatchNorm1d,
    4: torch.nn.BatchNorm2d,
    5: torch.nn.BatchNorm3d,
}
ROWS: dict[str, Callable[[int], int]] = {
    "even": lambda rank: 4,
    "uneven": lambda rank: 2 * rank + 2,
    "first has none": lambda rank: 0 if rank == 0 else rank + 2,
}


def batches(rows: str, dims: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """The batch of every rank; not centred, and of different width on each."""
    shapes = [(ROWS[rows](rank), CHANNELS, *[2] * (dims - 2)) for rank in range(md.size())]
    return [
        (make(rank, torch.float64, shape, seed) * (rank + 1) + 5.0).to(dtype)
        for rank, shape in enumerate(shapes)
    ]


def pair(dims: int, dtype: torch.dtype, **options: Any) -> tuple[Any, Any]:
    """A layer of torch and ours, with equal weights that are not 1 and 0."""
    local = LOCAL[dims](CHANNELS, dtype=dtype, **options)
    if local.affine:
        with torch.no_grad():
            local.weight.copy_(make(0, dtype, (CHANNELS,), seed=700))
            local.bias.copy_(make(1, dtype, (CHANNELS,), seed=700))
    ours = md.SyncBatchNorm(CHANNELS, dtype=dtype, **options)
    ours.load_state_dict(local.state_dict())
    return local, ours


def expect_equal_step(local: Any, ours: Any, parts: list[torch.Tensor], bound: float) -> None:
    """One forward and backward; compares outputs, gradients and running statistics."""
    me = md.rank()
    whole = torch.cat(parts).requires_grad_()
    mine = parts[me].clone().requires_grad_()
    weights = [make(rank, torch.float64, tuple(p.shape), 710) for rank, p in enumerate(parts)]
    wanted, got = local(whole), ours(mine)
    assert got.dtype == mine.dtype and got.shape == mine.shape
    (wanted * torch.cat(weights).to(wanted.dtype)).sum().backward()
    (got * weights[me].to(got.dtype)).sum().backward()
    rows = [part.shape[0] for part in parts]
    expect_near(got, wanted.split(rows)[me], bound, "output")
    assert mine.grad is not None and whole.grad is not None
    expect_near(mine.grad, whole.grad.split(rows)[me], bound, "gradient of the input")
    for name, parameter in ours.named_parameters():
        total = md.allreduce(parameter.grad, op=md.Sum)
        expect_near(total, local.get_parameter(name).grad, 10 * bound, f"gradient of {name}")
    for name, buffer in ours.named_buffers():
        expect_near(buffer, local.get_buffer(name), bound, name)


@check(cases=[(dims, rows) for dims in LOCAL for rows in ROWS])
def whole_batch(dims: int, rows: str) -> None:
    if rows == "first has none" and md.size() == 1:
        return  # then nobody has any
    local, ours = pair(dims, torch.float32)
    for step in range(3):
        local.zero_grad()
        ours.zero_grad()
        expect_equal_step(local, ours, batches(rows, dims, torch.float32, 720 + step), 1e-5)


@check()
def options_are_those_of_torch() -> None:
    parts = batches("uneven", 4, torch.float32, 740)
    for options in (
        {"affine": False},
        {"momentum": None},
        {"momentum": 0.3, "eps": 0.1},
        {"track_running_stats": False},
    ):
        local, ours = pair(4, torch.float32, **options)
        for _ in range(2):
            local.zero_grad()
            ours.zero_grad()
            expect_equal_step(local, ours, parts, 1e-5)


@check(cases=[(torch.float16,), (torch.bfloat16,)])
def half_precision_is_normalized_in_float32(dtype: torch.dtype) -> None:
    parts = batches("uneven", 4, dtype, 750)
    local, ours = pair(4, torch.float32)
    whole = torch.cat(parts).float()
    wanted = local(whole).split([part.shape[0] for part in parts])[md.rank()]
    got = ours(parts[md.rank()])
    assert got.dtype == dtype and ours.running_mean.dtype == torch.float32
    expect_near(got, wanted, 2 * torch.finfo(dtype).eps, "output")
    expect_near(ours.running_var, local.running_var, 1e-5, "running_var")
    in_half = copy.deepcopy(ours).to(dtype)
    expect_near(in_half(parts[md.rank()]), wanted, 8 * torch.finfo(dtype).eps, "half weights")


@check()
def a_large_mean_does_not_cancel() -> None:
    # E[x²] - E[x]² in float32 has no correct digit of the variance here.
    parts = [make(r, torch.float64, (50, CHANNELS), 760) * 0.1 + 1000.0 for r in range(md.size())]
    parts = [part.float() for part in parts]
    local, ours = pair(2, torch.float64)
    wanted = local(torch.cat(parts).double()).split(50)[md.rank()]
    ours.float()
    expect_near(ours(parts[md.rank()]), wanted, 2e-3, "output")
    expect_near(ours.running_var, local.running_var, 1e-5, "running_var")


@check(min_size=2)
def eval_mode_talks_to_nobody() -> None:
    local, ours = pair(4, torch.float32)
    parts = batches("even", 4, torch.float32, 770)
    local(torch.cat(parts))
    ours(parts[md.rank()])
    local.eval()
    ours.eval()
    if md.rank() == 0:  # the others never call it
        expect_near(ours(parts[0]), local(parts[0]), 1e-5, "output")
    md.barrier()


@check(min_size=3)
def only_the_ranks_of_a_process_set() -> None:
    members = [0, md.size() - 1]
    with added(members) as (pair,):
        if pair.included():  # the others do not even have the layer
            parts = [make(rank, torch.float64, (rank + 2, CHANNELS), 783) for rank in members]
            local = torch.nn.BatchNorm1d(CHANNELS, dtype=torch.float64)
            converted = md.convert_sync_batchnorm(copy.deepcopy(local), pair)
            whole = torch.cat(parts).requires_grad_()
            mine = parts[pair.rank()].clone().requires_grad_()
            local(whole).pow(3).sum().backward()
            converted(mine).pow(3).sum().backward()
            assert mine.grad is not None and whole.grad is not None
            wanted = whole.grad.split([len(part) for part in parts])[pair.rank()]
            expect_near(mine.grad, wanted, 1e-10, "gradient of the input")
            expect_near(converted.get_buffer("running_var"), local.running_var, 1e-12, "var")


@check(min_size=2)
def a_rank_that_has_joined_has_no_rows() -> None:
    parts = [make(rank, torch.float64, (rank + 2, CHANNELS), 784) for rank in range(md.size() - 1)]
    local, ours = pair(2, torch.float64)
    if md.rank() == md.size() - 1:
        md.join()
        return
    whole, mine = torch.cat(parts).requires_grad_(), parts[md.rank()].clone().requires_grad_()
    local(whole).pow(3).sum().backward()
    ours(mine).pow(3).sum().backward()
    md.join()
    assert mine.grad is not None and whole.grad is not None
    wanted = whole.grad.split([len(part) for part in parts])[md.rank()]
    expect_near(mine.grad, wanted, 1e-10, "gradient of the input")
    expect_near(ours.running_mean, local.running_mean, 1e-12, "running_mean")


@check(min_size=2)
def layers_in_threads_of_their_own() -> None:
    layers = [md.SyncBatchNorm(CHANNELS, dtype=torch.float64) for _ in range(2)]
    parts = [batches("even", 2, torch.float64, seed) for seed in (785, 786)]
    for layer in layers:  # names go by the order of the first calls
        layer(parts[0][md.rank()])
    results: dict[int, torch.Tensor] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: layers[i](parts[i][md.rank()])}))
        for i in (0, 1)
    ]
    order = threads if md.rank() % 2 else threads[::-1]
    for thread in order:
        thread.start()
    for thread in order:
        thread.join()
    for i in (0, 1):
        wanted = torch.nn.BatchNorm1d(CHANNELS, dtype=torch.float64)(torch.cat(parts[i]))
        expect_near(results[i], wanted.split(4)[md.rank()], 1e-12, f"layer {i}")


def small_model() -> torch.nn.Sequential:
    torch.manual_seed(17)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 5),
        torch.nn.BatchNorm1d(5),
    ).double()


@check()
def a_converted_model_has_the_gradients_of_the_whole_batch() -> None:
    n, me = md.size(), md.rank()
    local, ours = small_model(), md.convert_sync_batchnorm(small_model())
    parts = [make(rank, torch.float64, (3, 2, 4, 4), 790) for rank in range(n)]
    local(torch.cat(parts)).square().mul(torch.arange(5)).mean().backward()
    ours(parts[me]).square().mul(torch.arange(5)).mean().backward()
    for name, parameter in ours.named_parameters():
        expect_near(md.allreduce(parameter.grad), local.get_parameter(name).grad, 1e-10, name)
    for name, buffer in ours.named_buffers():
        expect_near(buffer, local.get_buffer(name), 1e-10, name)


@check()
def the_gradient_of_a_frozen_input() -> None:
    # The first layer of a model: only weight and bias are differentiated.
    local, ours = pair(2, torch.float64)
    parts = batches("uneven", 2, torch.float64, 795)
    local(torch.cat(parts)).pow(3).sum().backward()
    ours(parts[md.rank()]).pow(3).sum().backward()
    for name in ("weight", "bias"):
        total = md.allreduce(ours.get_parameter(name).grad, op=md.Sum)
        expect_near(total, local.get_parameter(name).grad, 1e-10, name)


def expect_error(kind: type[Exception], call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except kind as error:
        for part in parts:
            assert part in str(error), f"'{part}' is not in: {error}"
    else:
        raise AssertionError(f"no {kind.__name__}")


@check(min_size=2)
def one_value_per_channel_in_all_is_refused_everywhere() -> None:
    layer = md.SyncBatchNorm(CHANNELS)
    batch = torch.ones(1 if md.rank() == 0 else 0, CHANNELS)
    expect_error(
        *(ValueError, lambda: layer(batch)),
        f"got 1 value per channel over all {md.size()} ranks",
        f"this rank's input has shape [{batch.shape[0]}, 3]",
        "expected more than 1 value per channel when training",
    )
    assert int(layer.num_batches_tracked) == 0
    expect_near(layer(torch.ones(1, CHANNELS)), torch.zeros(1, CHANNELS), 1e-6, "afterwards")


@check(min_size=2)
def a_batch_that_nobody_has_leaves_the_statistics_alone() -> None:
    layer = md.SyncBatchNorm(CHANNELS)
    batch = torch.ones(0, CHANNELS, 2, requires_grad=True)
    result = layer(batch)
    result.sum().backward()
    assert result.shape == batch.shape and batch.grad is not None
    assert layer.running_mean.tolist() == [0.0] * 3 and layer.running_var.tolist() == [1.0] * 3


@check(min_size=2)
def the_second_derivative_is_refused() -> None:
    layer = md.SyncBatchNorm(CHANNELS)
    x = make(md.rank(), torch.float32, (4, CHANNELS), 799).requires_grad_()
    (slope,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
    expect_error(RuntimeError, lambda: slope.sum().backward(), "once_differentiable")
