"""The peer of a parameter server: torch.distributed.rpc (TensorPipe), which holds parameters in a
process of its own. `python -m benchmarks.jobs.rpc_peer PORT WORKERS TRANSPORT` is that process; it
imports torch alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Lock

import torch
from torch.distributed import rpc

SERVER = "server"
_ROOT = Path(__file__).resolve().parents[2]
# Over "uv", TensorPipe must not find out that memory is shared.
_CHANNELS = {"shm": None, "uv": ["mpt_uv", "basic"]}
_parameters: dict[int, torch.Tensor] = {}
_lock = Lock()


def push_pull(gradient: torch.Tensor) -> torch.Tensor:
    """At the server: w ← w − gradient for the vector of that length, and w as it then is.

    A copy: TensorPipe reads the answer later, piece by piece, while the next push may change w.
    """
    with _lock:
        if gradient.numel() not in _parameters:
            _parameters[gradient.numel()] = torch.zeros(gradient.numel())
        return _parameters[gradient.numel()].sub_(gradient).clone()


def join(port: int, number: int, workers: int, transport: str) -> None:
    """Worker `number` of so many, or with that number itself the server. Blocks until all are."""
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port}",
        _transports=[transport],
        _channels=_CHANNELS[transport],
    )
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        SERVER if number == workers else f"worker{number}",
        rank=number,
        world_size=workers + 1,
        rpc_backend_options=options,
    )


def start_server(port: int, workers: int, transport: str) -> subprocess.Popen[bytes]:
    """The process of the server. It ends when all workers have called rpc.shutdown()."""
    arguments = [str(port), str(workers), transport]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.jobs.rpc_peer", *arguments],
        cwd=_ROOT,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"},
    )


def call(gradient: torch.Tensor) -> torch.Tensor:
    """At a worker: gives the gradient, gets the parameters."""
    answer: torch.Tensor = rpc.rpc_sync(SERVER, push_pull, args=(gradient,))
    return answer


if __name__ == "__main__":
    # The functions have the name under which the workers know them.
    from benchmarks.jobs import rpc_peer

    rpc_peer.join(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[2]), sys.argv[3])
    rpc.shutdown()
