"""The training-step benchmark: DistributedOptimizer next to DistributedDataParallel over gloo.

Others train the same if asked for: DDP over the backend mydist, FSDP2 over both backends, and
Horovod, in a job of its own, round by round.

All train the same model on the same random data; "compute" is the step of one rank without any
exchange, which is what a perfect overlap would take: the bound. After every step the gradients of
all are compared, outside the time that is measured.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.distributed
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import mydist as md
from mydist import _C
from mydist.bench.contest import Stopwatch, is_falsified, share
from mydist.bench.implementations import TorchGloo
from mydist.bench.models import Trainee, Workload, make_workload
from mydist.bench.peers import PeerUnavailable, horovod_command, require_horovod, run_jobs
from mydist.bench.problem import WrongResult
from mydist.bench.results import Measured, Row, Subject, make_row, median

WARM_UP_STEPS = 3
# Of the norm of all gradients. Rounding differs, and grows from step to step; a gradient that was
# not exchanged, or that of the step before, is as far away as it is long.
_TOLERANCE = 0.01
_PEER_TIMEOUT = 600.0  # Seconds that a round of a peer may take.


@dataclass(frozen=True)
class StepPlan:
    """What is measured; the batch is per rank, the steps are per round."""

    model: str
    batch: int
    steps: int
    rounds: int
    peers: Sequence[str] = ()  # "horovod", "ddp-mydist", "fsdp"


class Watched(Trainee):
    """A trainee whose gradients are looked at after every step."""

    def __init__(self, name: str, workload: Workload, distributed: bool = False) -> None:
        super().__init__(workload, distributed)
        self.name = name
        random = torch.Generator().manual_seed(17)
        self._signs = [
            torch.randint(0, 2, (p.numel(),), generator=random).mul_(2).sub_(1).to(p.dtype)
            for p in workload.model.parameters()
        ]

    def falsify(self) -> None:
        """Makes the largest gradient another one."""
        gradients = [_local(p.grad) for p in self.model.parameters() if p.grad is not None]
        max(gradients, key=lambda gradient: float(gradient.norm())).mul_(1.1)

    def fingerprint(self) -> torch.Tensor:
        """(parameters, 2): norm and signed sum of each gradient."""
        rows = []
        for parameter, signs in zip(self.model.parameters(), self._signs, strict=True):
            gradient = (
                torch.zeros(1) if parameter.grad is None else _whole(parameter.grad).flatten()
            )
            rows.append(torch.stack([gradient.norm(), (gradient * signs).sum()]))
        return torch.stack(rows)


def _whole(gradient: torch.Tensor) -> torch.Tensor:
    """Of all ranks, where each has a shard. Collective then."""
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def _local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _parallel(name: str, workload: Workload, group: ProcessGroup | None = None) -> Watched:
    """By DistributedDataParallel."""
    trainee = Watched(name, workload)
    with warnings.catch_warnings():  # Newer torch prefers a name that older torch does not have.
        warnings.simplefilter("ignore", FutureWarning)
        # mydist does not broadcast the statistics of batch norm at every step, so DDP need not.
        trainee.model = DistributedDataParallel(
            workload.model, process_group=group, broadcast_buffers=False
        )
    return trainee


def _sharded(name: str, workload: Workload, group: ProcessGroup) -> Watched:
    """By FSDP2, each block of the model a unit."""
    mesh = DeviceMesh.from_group(group, "cpu")
    for child in workload.model.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    fully_shard(workload.model, mesh=mesh)
    return Watched(name, workload)


def _trainees(plan: StepPlan) -> list[Watched]:
    def workload() -> Workload:
        return make_workload(plan.model, plan.batch, md.rank())

    TorchGloo(one_host=md.local_size() == md.size())
    trainees = [
        Watched("compute", workload()),
        Watched(f"mydist-{_C.backend_name()}", workload(), distributed=True),
        _parallel("ddp-gloo", workload()),
    ]
    if {"ddp-mydist", "fsdp"}.isdisjoint(plan.peers):
        return trainees
    import_module("mydist.c10d")  # Where no entry point of torch does it.
    group = torch.distributed.new_group(backend="mydist")
    everybody = torch.distributed.new_group(backend="gloo")
    if "ddp-mydist" in plan.peers:
        trainees.append(_parallel("ddp-mydist", workload(), group))
    if "fsdp" in plan.peers:
        trainees.append(_sharded("fsdp-mydist", workload(), group))
        trainees.append(_sharded("fsdp-gloo", workload(), everybody))
    return trainees


def measure_step(plan: StepPlan) -> list[Row]:
    """Runs everything. Collective over all ranks; rank 0 gets the rows, the others none.

    Raises:
        WrongResult: in some step the two ways of training had different gradients.
    """
    trainees = _trainees(plan)
    found = {trainee.name: Measured() for trainee in trainees}
    peer = _horovod(plan) if md.rank() == 0 else None
    for index in range(plan.rounds):
        seen = {}
        for trainee in trainees:
            measured, seen[trainee.name] = _round(trainee, plan)
            found[trainee.name].add(measured)
        _, ours, *others = seen.values()
        for name, theirs in zip(list(seen)[2:], others, strict=True):
            for step, (mine, wanted) in enumerate(zip(ours, theirs, strict=True)):
                _check_equal(mine, wanted, step, name)
        if peer is not None:
            measured, last = _horovod_round(plan, peer)
            found.setdefault("horovod", Measured()).add(measured)
            if index == 0:  # It begins anew in every round.
                _check_equal(ours[-1], last, len(ours) - 1, "Horovod")
        md.barrier()  # The other ranks leave the cores to it.
    if md.rank() != 0:
        return []
    size = sum(p.numel() * p.element_size() for p in trainees[0].model.parameters())
    bound = median(found["compute"].times_us)
    rows = []
    for name, measured in found.items():
        subject = Subject(f"step-{plan.model}", name, "float32", md.size(), size)
        rows.append(make_row(subject, measured, bound))
    return rows


def _round(trainee: Watched, plan: StepPlan) -> tuple[Measured, list[torch.Tensor]]:
    """One round: the times, per step, and what the gradients were after each, warming up too."""
    watch = Stopwatch(WARM_UP_STEPS)
    fingerprints = []
    md.barrier()
    for step in range(-WARM_UP_STEPS, plan.steps):
        watch.time(trainee.step)
        if step == plan.steps - 1 and is_falsified(trainee.name):
            trainee.falsify()
        fingerprints.append(trainee.fingerprint())
    return share(watch.measured), fingerprints


def _horovod(plan: StepPlan) -> list[str] | None:
    """The command that runs a round of it; None if it is not asked for or cannot run here."""
    if "horovod" not in plan.peers:
        return None
    try:
        require_horovod()
    except PeerUnavailable as error:
        print(f"without horovod: {error}", file=sys.stderr, flush=True)
        return None
    return horovod_command(md.size(), "step", plan.model, str(plan.batch), str(plan.steps))


def _horovod_round(plan: StepPlan, command: list[str]) -> tuple[Measured, torch.Tensor]:
    """The times, and the gradients after the last step. RuntimeError with its output."""
    output = run_jobs([command], {}, _PEER_TIMEOUT)
    lines = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line.strip()}
    try:
        _, _, cpu, switches, *times = lines["result"]
        values = torch.tensor([float(value) for value in lines["gradients"]])
    except (KeyError, ValueError):
        raise RuntimeError(f"expected the result of {plan.steps} steps:\n{output}") from None
    measured = Measured([float(us) for us in times], float(cpu), float(switches))
    return measured, values.view(-1, 2)


def _check_equal(ours: torch.Tensor, theirs: torch.Tensor, step: int, other: str) -> None:
    """Of fingerprints; of the `step`-th step of a round."""
    difference = float((ours - theirs).abs().max())
    size = float(theirs[:, 0].norm())
    if not difference <= _TOLERANCE * size:
        raise WrongResult(
            f"mydist and {other} had different gradients in step {step} of a round, warming up "
            f"included: by up to {difference}, all together are {size} long"
        )
