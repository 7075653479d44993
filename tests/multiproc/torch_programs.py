"""Programs of torch over a backend of torch.distributed, as checks: DDP, FSDP2, DTensor, DCP."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

PROGRAMS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS.append(function)
    return function


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))


def batch_of(rank: int) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(rank))


def gradients_of_all() -> list[torch.Tensor]:
    """Of one process with the batches of all ranks."""
    whole = model()
    loss = sum(whole(batch_of(rank)).square().mean() for rank in range(size())) / size()
    loss.backward()  # type: ignore[union-attr]
    return [parameter.grad for parameter in whole.parameters() if parameter.grad is not None]


@check
def distributed_data_parallel() -> None:
    parallel = nn.parallel.DistributedDataParallel(model(seed=rank()))
    parallel.load_state_dict({f"module.{k}": v for k, v in model().state_dict().items()})
    parallel(batch_of(rank())).square().mean().backward()
    for parameter, expected in zip(parallel.parameters(), gradients_of_all(), strict=True):
        torch.testing.assert_close(parameter.grad, expected)


@check
def data_parallel_with_a_communication_hook() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    parallel = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=1)
    state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        parallel(batch_of(rank())).square().mean().backward()
    gradients = [p.grad.clone() for p in parallel.parameters() if p.grad is not None]
    for gradient in gradients:
        same = gradient.clone()
        dist.broadcast(same, 0)
        assert torch.equal(gradient, same)


@check
def fully_sharded() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    sharded = model()
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    sharded(batch_of(rank())).square().mean().backward()
    for parameter, expected in zip(sharded.parameters(), gradients_of_all(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), expected)  # type: ignore[union-attr]
    torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)


@check
def distributed_tensors() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (size(),))
    full = torch.arange(48.0).view(12, 4)
    shards = distribute_tensor(full, mesh, [Shard(0)])
    assert torch.equal(shards.redistribute(mesh, [Shard(1)]).full_tensor(), full)
    assert torch.equal(shards.redistribute(mesh, [Replicate()]).to_local(), full)
    whole, parts = model(), model()
    parallelize_module(parts, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(parts(batch_of(0)), whole(batch_of(0)))


@check
def checkpoints() -> None:
    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp() if rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    state = {"same": torch.ones(4), f"own {rank()}": torch.full((3,), float(rank()))}
    dcp.save(state, checkpoint_id=folder[0])
    loaded = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp.load(loaded, checkpoint_id=folder[0])
    assert all(torch.equal(loaded[name], state[name]) for name in state)


@check
def compiled_collectives() -> None:
    from torch.distributed import _functional_collectives as functional

    def double_and_add(tensor: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    compiled = torch.compile(double_and_add, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 2.0 * size() + 1))


def store_of_all() -> dist.Store:
    """A new one, which rank 0 serves."""
    port = [0]
    if rank() == 0:
        store = dist.TCPStore("127.0.0.1", 0, size(), is_master=True, wait_for_workers=False)
        port = [store.port]
    dist.broadcast_object_list(port, src=0)
    return store if rank() == 0 else dist.TCPStore("127.0.0.1", port[0], size())


def made_again_with_fewer_ranks(store: dist.Store, own: int, ranks: int) -> None:
    """On one store, as an elastic job does."""
    for count in (ranks, max(ranks - 1, 1), ranks):
        if own < count:
            dist.init_process_group("mydist", store=store, rank=own, world_size=count)
            dist.barrier()
            dist.destroy_process_group()
    store.add("left", 1)
    while own == 0 and store.add("left", 0) < ranks:
        time.sleep(0.01)
