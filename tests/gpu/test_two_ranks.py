"""Ranks that share a GPU, on every path that they can take: each collective is right, and training
is that of one process with all data. One job for each path; its ranks make both and say what came.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from multiproc.every_collective import run_all
from multiproc.pretended_hosts import pretend_hosts

import mydist as md
from mydist.bench.models import Workload, make_workload

_DTYPES = (torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64)
_FIRST_NCCL_TO_SHARE = 23003
# Of the whole batch, which is shared out evenly; steps.
_BATCH, _STEPS = 8, 3
# Sums are made in another order; batch normalization of few images in 53 layers makes of the last
# bit of a float32 percents of the loss within three steps, so that it would show no mistake.
_MODELS = {"resnet50": torch.float64, "gpt": torch.float32}
_LEARNING_RATE = 0.05
_SECONDS = 45  # Of a job, whose ranks end themselves then: a kernel may wait forever.


@dataclass(frozen=True)
class Layout:
    """How the ranks are told to reduce, and what mydist.explain() then has to say of the path."""

    says: str
    ranks: int = 2
    variables: dict[str, str] = field(default_factory=dict)
    own_nccl_hosts: bool = False  # Each rank is on a host of its own for NCCL, which then shares.
    least_nccl: int = 0


_HIERARCHY = "inside each host, through host memory between hosts"
LAYOUTS = {
    "host memory": Layout("through host memory", variables={"MYDIST_GPU_IPC": "off"}),
    "GPU to GPU": Layout("from GPU to GPU up to", variables={"MYDIST_GPU_IPC": "on"}),
    "NCCL that shares": Layout(
        "NCCL",
        variables={
            "MYDIST_GPU_IPC": "off",
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
        },
        least_nccl=_FIRST_NCCL_TO_SHARE,
    ),
    "NCCL between hosts": Layout(
        "NCCL", variables={"MYDIST_GPU_IPC": "off"}, own_nccl_hosts=True, least_nccl=1
    ),
    "2 hosts x 1": Layout(
        "through host memory",
        variables={"TEST_RANKS_PER_HOST": "1", "MYDIST_HIERARCHICAL_ALLREDUCE": "1"},
    ),
    "2 hosts x 2": Layout(
        _HIERARCHY,
        ranks=4,
        variables={"TEST_RANKS_PER_HOST": "2", "MYDIST_HIERARCHICAL_ALLREDUCE": "1"},
        own_nccl_hosts=True,
        least_nccl=1,
    ),
}


@dataclass
class Report:
    """What a rank has found: tracebacks by dtype, empty where all was right; losses by model."""

    path: str
    wrong: dict[torch.dtype, str]
    losses: dict[str, list[float]]


def train(
    workload: Workload, optimizer: torch.optim.Optimizer, rows: slice = slice(None)
) -> list[float]:
    """On those rows of the batch; the losses."""
    losses = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            workload.model(workload.inputs[rows]), workload.labels[rows]
        )
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def workload_of(name: str, device: torch.device) -> Workload:
    """The whole batch."""
    workload = make_workload(name, _BATCH, 0).to(device)
    inputs = workload.inputs
    if inputs.is_floating_point():
        inputs = inputs.to(_MODELS[name])
    return Workload(workload.model.to(_MODELS[name]), inputs, workload.labels)


def calculate_exactly() -> None:
    """float32 as it is, also in convolutions."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def losses_of_one_rank(name: str, device: torch.device) -> list[float]:
    """Of this rank's part of the batch, with statistics of the whole."""
    workload = workload_of(name, device)
    model = md.convert_sync_batchnorm(workload.model)
    md.broadcast_parameters(model.state_dict(), 0)
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE),
        named_parameters=model.named_parameters(),
    )
    each = _BATCH // md.size()
    rows = slice(each * md.rank(), each * (md.rank() + 1))
    return train(Workload(model, workload.inputs, workload.labels), optimizer, rows)


@functools.cache
def losses_of_one_process(name: str, device: torch.device) -> list[float]:
    """Of the whole batch, without mydist."""
    calculate_exactly()
    workload = workload_of(name, device)
    return train(workload, torch.optim.SGD(workload.model.parameters(), lr=_LEARNING_RATE))


def be_a_rank(device: str, own_nccl_host: bool) -> Report:
    """A rank of the job."""
    faulthandler.dump_traceback_later(_SECONDS, exit=True)
    calculate_exactly()
    if own_nccl_host:
        os.environ["NCCL_HOSTID"] = f"host{os.environ['MYDIST_RANK']}"
    pretend_hosts()
    md.init()
    report = Report("", {}, {})
    for dtype in _DTYPES:
        report.wrong[dtype] = complaint(dtype, torch.device(device))
    for name in _MODELS:
        report.losses[name] = losses_of_one_rank(name, torch.device(device))
    path = md.explain().facts.get("GPU path")
    report.path = "none" if path is None else f"{path.choice} ({path.reason})"
    md.shutdown()
    faulthandler.cancel_dump_traceback_later()
    return report


def complaint(dtype: torch.dtype, device: torch.device) -> str:
    """What was wrong with a collective of that dtype; empty when nothing was."""
    try:
        run_all(md.global_process_set, dtype, "all", device)
    except AssertionError:
        return traceback.format_exc()
    return ""


@functools.cache
def job_of(name: str, device: str) -> list[Report] | Exception:
    """What its ranks report, or why they do not."""
    layout = LAYOUTS[name]
    variables = {"MYDIST_STALL_SHUTDOWN_SECONDS": "20", **layout.variables}
    flags = ["--gloo"] if "TEST_RANKS_PER_HOST" in layout.variables else []
    arguments = [device, layout.own_nccl_hosts]
    try:
        return md.run(be_a_rank, arguments, num_proc=layout.ranks, env=variables, flags=flags)
    except md.MydistError as error:
        return error


Reports = Callable[[str], list[Report]]
# All tests of one job before those of the next.
on_every_path = pytest.mark.parametrize("name", LAYOUTS, scope="module")


@pytest.fixture
def reports(gpu: torch.device, tests_on_path: None) -> Reports:
    """Of the ranks of a layout; the test is skipped where it cannot be."""

    def find(name: str) -> list[Report]:
        layout = LAYOUTS[name]
        found = md.nccl_built()
        if found < layout.least_nccl:
            pytest.skip(f"NCCL {layout.least_nccl} or newer is needed, found is {found}")
        if "TEST_RANKS_PER_HOST" in layout.variables and not md.gloo_built():
            pytest.skip("mydist was built without Gloo, which connects hosts")
        outcome = job_of(name, str(gpu))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return find


@on_every_path
def test_the_path_is_the_one_that_was_asked_for(reports: Reports, name: str) -> None:
    for report in reports(name):
        assert LAYOUTS[name].says in report.path


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@on_every_path
def test_every_collective_is_right(reports: Reports, name: str, dtype: torch.dtype) -> None:
    for rank, report in enumerate(reports(name)):
        assert not report.wrong[dtype], f"rank {rank}, {report.path}:\n{report.wrong[dtype]}"


@pytest.mark.parametrize("model", _MODELS)
@on_every_path
def test_ranks_train_as_one_process_with_the_whole_batch(
    reports: Reports, name: str, model: str, gpu: torch.device
) -> None:
    losses = [report.losses[model] for report in reports(name)]
    means = [sum(step) / len(losses) for step in zip(*losses, strict=True)]
    relative = 1e-6 if _MODELS[model] == torch.float64 else 1e-3
    assert means == pytest.approx(losses_of_one_process(model, gpu), rel=relative)
