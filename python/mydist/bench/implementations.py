"""Implementations of the collectives that run in the processes of this job."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch
import torch.distributed

import mydist as md
from mydist import _C
from mydist.bench.problem import ROOT, Problem, Shape

# Runs the collective once, blocking; returns what the rank gets.
Call = Callable[[], torch.Tensor]


class Implementation(Protocol):
    """Collectives of this job's ranks."""

    name: str

    def prepare(self, problem: Problem) -> Call:
        """The call to be timed, on the problem's input."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""


class Mydist:
    """The engine of this job."""

    def __init__(self) -> None:
        self.name = f"mydist-{_C.backend_name()}"

    def prepare(self, problem: Problem) -> Call:
        """See Implementation."""
        op, data = problem.shape.op, problem.input
        name = f"bench.{op}.{data.dtype}.{data.numel()}"
        calls: dict[str, Call] = {
            "allreduce": lambda: md.allreduce_(data, op=md.Sum, name=name),
            "allgather": lambda: md.allgather(data, name=name),
            "broadcast": lambda: md.broadcast_(data, ROOT, name=name),
            "alltoall": lambda: _tensor(md.alltoall(data, name=name)),
            "reducescatter": lambda: md.reducescatter(data, op=md.Sum, name=name),
            "barrier": lambda: _after(md.barrier, data),
        }
        return calls[op]

    def barrier(self) -> None:
        """See Implementation."""
        md.barrier()


def _tensor(result: object) -> torch.Tensor:
    assert isinstance(result, torch.Tensor)
    return result


def _after(action: Callable[[], object], data: torch.Tensor) -> torch.Tensor:
    action()
    return data


class TorchGloo:
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
        """See Implementation."""
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
        """See Implementation."""
        torch.distributed.barrier()


def _output_elements(shape: Shape) -> int:
    if shape.op == "allgather":
        return shape.elements * shape.ranks
    return shape.elements // (shape.ranks if shape.op == "reducescatter" else 1)


class Falsified:
    """An implementation whose results are wrong on the last rank; shows that this is noticed."""

    def __init__(self, right: Implementation) -> None:
        self.name = right.name
        self._right = right

    def prepare(self, problem: Problem) -> Call:
        """See Implementation."""
        call = self._right.prepare(problem)

        def falsify() -> torch.Tensor:
            output = call()
            if problem.shape.rank == problem.shape.ranks - 1:
                output[output.numel() // 2] += 1
            return output

        return falsify

    def barrier(self) -> None:
        """See Implementation."""
        self._right.barrier()


def close_torch_gloo() -> None:
    """Leaves torch's process group, if there is one."""
    with suppress(AssertionError, ValueError):
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
