"""Implementations of the collectives that run in the processes of this job."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed

import mydist as md
from mydist import _C
from mydist.bench.problem import ROOT, Problem, Shape

# Barriers after which a schedule that has not frozen is not expected to; see MYDIST_FREEZE_AFTER.
_NEVER_SETTLES = 60

# Runs the collective once, blocking; returns what the rank gets.
Call = Callable[[], torch.Tensor]


class Implementation:
    """Collectives of this job's ranks."""

    name: str

    def prepare(self, problem: Problem) -> Call:
        """The call to be timed, on the problem's input."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Returns when all ranks have called it, before a call that is timed."""
        raise NotImplementedError

    def await_others(self) -> None:
        """Returns when all ranks have called it, after a call that was timed."""
        self.barrier()

    def is_settled(self) -> bool:
        """Whether calls cost by now what they are going to cost; the same on all ranks."""
        return True


class Mydist(Implementation):
    """The engine of this job."""

    def __init__(self) -> None:
        self.name = f"mydist-{_C.backend_name()}"
        self._unsettled, self._done = torch.zeros(1), torch.zeros(1)
        self._frozen_steps = 0
        self._barriers = 0
        self._has_settled = False

    def prepare(self, problem: Problem) -> Call:
        return call_of(md, problem)

    def barrier(self) -> None:
        """See Implementation; counts the ranks that negotiate as well.

        A sum of one number, which tells that as well. The calls after it freeze with it, as those
        of a training loop do.
        """
        frozen_steps = md.stats()["frozen_steps"]
        self._unsettled.fill_(frozen_steps == self._frozen_steps)
        self._frozen_steps = frozen_steps
        md.allreduce_(self._unsettled, op=md.Sum, name="bench.barrier")
        self._barriers += 1
        self._has_settled |= self._unsettled.item() == 0

    def await_others(self) -> None:
        """See Implementation. Under a name of its own, or it would begin a step."""
        md.allreduce_(self._done, op=md.Sum, name="bench.done")

    def is_settled(self) -> bool:
        """See Implementation: no rank negotiated from the barrier before to the last one.

        Or none ever stops: one that can does so the first time after few calls.
        """
        never = not self._has_settled and self._barriers >= _NEVER_SETTLES
        return never or self._unsettled.item() == 0


def call_of(library: Any, problem: Problem) -> Call:
    """The collective of mydist, or of Horovod, whose functions have the same names."""
    op, data = problem.shape.op, problem.input
    name = f"bench.{op}.{data.dtype}.{data.numel()}"
    calls: dict[str, Call] = {
        "allreduce": lambda: library.allreduce_(data, op=library.Sum, name=name),
        "allgather": lambda: library.allgather(data, name=name),
        "broadcast": lambda: library.broadcast_(data, ROOT, name=name),
        "alltoall": lambda: library.alltoall(data, name=name),
        "reducescatter": lambda: library.reducescatter(data, op=library.Sum, name=name),
        "barrier": lambda: _after(library.barrier, data),
    }
    return calls[op]


def _after(action: Callable[[], object], data: torch.Tensor) -> torch.Tensor:
    action()
    return data


class TorchGloo(Implementation):
    """torch.distributed with its gloo backend; outputs are allocated once."""

    name = "torch-gloo"

    def __init__(self, one_host: bool) -> None:
        """Connects, over the loopback interface when on one host; collective over all ranks."""
        address, port = "127.0.0.1", 0
        if not one_host:
            address = socket.gethostbyname(socket.gethostname())
        else:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if md.rank() == 0:
            with socket.socket() as probe:
                probe.bind((address, 0))
                port = probe.getsockname()[1]
        address, port = md.broadcast_object((address, port), 0, name="bench.torch_gloo")
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://{address}:{port}", rank=md.rank(), world_size=md.size()
        )

    def prepare(self, problem: Problem) -> Call:
        data, dist = problem.input, torch.distributed
        output = torch.empty(_output_elements(problem.shape), dtype=data.dtype)
        # Torch 2.13 gave them other names.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        calls: dict[str, Callable[[], object]] = {
            "allreduce": lambda: dist.all_reduce(data),
            "allgather": lambda: gather(output, data),
            "broadcast": lambda: dist.broadcast(data, ROOT),
            "alltoall": lambda: dist.all_to_all_single(output, data),
            "reducescatter": lambda: scatter(output, data),
            "barrier": dist.barrier,
        }
        in_place = problem.shape.op in ("allreduce", "broadcast", "barrier")
        call, result = calls[problem.shape.op], data if in_place else output
        return lambda: _after(call, result)

    def barrier(self) -> None:
        torch.distributed.barrier()


def _output_elements(shape: Shape) -> int:
    if shape.op == "allgather":
        return shape.elements * shape.ranks
    return shape.elements // (shape.ranks if shape.op == "reducescatter" else 1)


def close_torch_gloo() -> None:
    """Leaves torch's process group, if there is one."""
    with suppress(AssertionError, ValueError):
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
