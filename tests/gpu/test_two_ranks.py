"""Ranks that share a GPU, on every path that they can take: each collective is right, and training
is that of one process with all data. One job for each path; its ranks make both and say what came.
"""

from __future__ import annotations

import faulthandler
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from multiproc.every_collective import run_all
from multiproc.more_collectives import CHECKS, complaint_of
from multiproc.pretended_hosts import pretend_hosts

import mydist as md
from mydist.bench.devices import FIRST_NCCL_TO_SHARE, let_ranks_share_the_gpu, nccl_host_of
from mydist.bench.models import Workload, make_workload

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
)
# Of the whole batch, which is shared out evenly; steps.
_BATCH, _STEPS = 8, 3
# Sums are made in another order; batch normalization of few images in 53 layers makes of the last
# bit of a float32 percents of the loss within three steps, so that it would show no mistake.
_MODELS = {"resnet50": torch.float64, "gpt": torch.float32}
_LEARNING_RATE = 0.05
_SECONDS = 45  # Of a job, whose ranks end themselves then: a kernel may wait forever.


def models_on(device: torch.device) -> dict[str, torch.dtype]:
    """What is trained there."""
    return _MODELS if device.type == "cuda" else {"gpt": torch.float32}


@dataclass(frozen=True)
class Layout:
    """How the ranks are told to reduce, and how what mydist.explain() says was chosen has to
    begin."""

    says: str
    ranks: int = 2
    backend: str = ""  # "gloo" or "mpi", where there have to be hosts.
    variables: dict[str, str] = field(default_factory=dict)
    own_nccl_hosts: bool = False  # Each rank is on a host of its own for NCCL, which then shares.
    least_nccl: int = 0


def _hosts(backend: str, per_host: int) -> Layout:
    variables = {"TEST_RANKS_PER_HOST": str(per_host), "MYDIST_HIERARCHICAL_ALLREDUCE": "1"}
    if per_host == 1:
        return Layout("through host memory", backend=backend, variables=variables)
    return Layout(
        "NCCL",
        ranks=2 * per_host,
        backend=backend,
        variables=variables,
        own_nccl_hosts=True,
        least_nccl=1,
    )


LAYOUTS = {
    "host memory": Layout("through host memory"),
    "NCCL that shares": Layout(
        "NCCL",
        variables=let_ranks_share_the_gpu("any", FIRST_NCCL_TO_SHARE),
        least_nccl=FIRST_NCCL_TO_SHARE,
    ),
    "NCCL between hosts": Layout("NCCL", own_nccl_hosts=True, least_nccl=1),
    "2 hosts x 1": _hosts("gloo", 1),
    "2 hosts x 2": _hosts("gloo", 2),
    "2 hosts x 1, MPI": _hosts("mpi", 1),
    "2 hosts x 2, MPI": _hosts("mpi", 2),
}


@dataclass
class Report:
    """What a rank has found: tracebacks by dtype and by check, empty where all was right; losses by
    model."""

    path: str = "none"
    reason: str = ""
    wrong: dict[torch.dtype | str, str] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)


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
        rank = os.environ.get("MYDIST_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", ""))
        os.environ.update(nccl_host_of(rank))
    pretend_hosts()
    md.init()
    own = torch.device(device)
    report = Report()
    for dtype in _DTYPES:
        report.wrong[dtype] = complaint_of(
            lambda dtype=dtype: run_all(md.global_process_set, dtype, "all", own)
        )
    for name, check in CHECKS.items():
        report.wrong[name] = complaint_of(lambda check=check: check(own))
    for name in models_on(own):
        report.losses[name] = losses_of_one_rank(name, own)
    path = md.explain().facts.get("GPU path")
    if path is not None:
        report.path, report.reason = path.choice, path.reason
    md.shutdown()
    faulthandler.cancel_dump_traceback_later()
    return report


@functools.cache
def job_of(name: str, device: str) -> list[Report] | Exception:
    """What its ranks report, or why they do not."""
    layout = LAYOUTS[name]
    variables = {"MYDIST_STALL_SHUTDOWN_SECONDS": "20", **layout.variables}
    flags = [f"--{layout.backend}"] if layout.backend else []
    arguments = [device, layout.own_nccl_hosts]
    try:
        return md.run(be_a_rank, arguments, num_proc=layout.ranks, env=variables, flags=flags)
    except Exception as error:  # Whatever a rank has raised: once for all tests of the job.
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
        if layout.backend and not getattr(md, f"{layout.backend}_built")():
            pytest.skip(f"mydist was built without {layout.backend}, which connects the hosts")
        outcome = job_of(name, str(gpu))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return find


@on_every_path
def test_the_path_is_the_one_that_was_asked_for(
    reports: Reports, name: str, gpu: torch.device
) -> None:
    if gpu.type != "cuda":
        pytest.skip("host memory has one path")
    for report in reports(name):
        assert report.path.startswith(LAYOUTS[name].says), f"{report.path}: {report.reason}"


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@on_every_path
def test_every_collective_is_right(reports: Reports, name: str, dtype: torch.dtype) -> None:
    for rank, report in enumerate(reports(name)):
        assert not report.wrong[dtype], f"rank {rank}, {report.path}:\n{report.wrong[dtype]}"


@pytest.mark.parametrize("check", CHECKS)
@on_every_path
def test_the_job_is_right(reports: Reports, name: str, check: str) -> None:
    for rank, report in enumerate(reports(name)):
        assert not report.wrong[check], f"rank {rank}, {report.path}:\n{report.wrong[check]}"


@pytest.mark.parametrize("model", _MODELS)
@on_every_path
def test_ranks_train_as_one_process_with_the_whole_batch(
    reports: Reports, name: str, model: str, gpu: torch.device
) -> None:
    if model not in models_on(gpu):
        pytest.skip("takes too long without a GPU")
    losses = [report.losses[model] for report in reports(name)]
    means = [sum(step) / len(losses) for step in zip(*losses, strict=True)]
    relative = 1e-6 if _MODELS[model] == torch.float64 else 1e-3
    assert means == pytest.approx(losses_of_one_process(model, gpu), rel=relative)
