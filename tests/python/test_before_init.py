"""Calls outside init … shutdown are refused with a hint, whatever they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import mydist as md

pytestmark = pytest.mark.usefixtures("no_job")


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)


CALLS: dict[str, Callable[[], object]] = {
    "rank": md.rank,
    "size": md.size,
    "local_rank": md.local_rank,
    "local_size": md.local_size,
    "cross_rank": md.cross_rank,
    "cross_size": md.cross_size,
    "is_homogeneous": md.is_homogeneous,
    "mpi_threads_supported": md.mpi_threads_supported,
    "stats": md.stats,
    "stop_timeline": md.stop_timeline,
    "start_timeline": lambda: md.start_timeline("t.json"),
    "allreduce": lambda: md.allreduce(torch.ones(2)),
    "allreduce_": lambda: md.allreduce_(torch.ones(2)),
    "allreduce_async": lambda: md.allreduce_async(torch.ones(2)),
    "allreduce_async_": lambda: md.allreduce_async_(torch.ones(2)),
    "grouped_allreduce": lambda: md.grouped_allreduce([torch.ones(2)]),
    "grouped_allreduce_": lambda: md.grouped_allreduce_([torch.ones(2)]),
    "grouped_allreduce_async": lambda: md.grouped_allreduce_async([torch.ones(2)]),
    "grouped_allreduce_async_": lambda: md.grouped_allreduce_async_([torch.ones(2)]),
    "allgather": lambda: md.allgather(torch.ones(2)),
    "allgather_async": lambda: md.allgather_async(torch.ones(2)),
    "grouped_allgather": lambda: md.grouped_allgather([torch.ones(2)]),
    "grouped_allgather_async": lambda: md.grouped_allgather_async([torch.ones(2)]),
    "broadcast": lambda: md.broadcast(torch.ones(2), 0),
    "broadcast_": lambda: md.broadcast_(torch.ones(2), 0),
    "broadcast_async": lambda: md.broadcast_async(torch.ones(2), 0),
    "broadcast_async_": lambda: md.broadcast_async_(torch.ones(2), 0),
    "alltoall": lambda: md.alltoall(torch.ones(2)),
    "alltoall_async": lambda: md.alltoall_async(torch.ones(2)),
    "reducescatter": lambda: md.reducescatter(torch.ones(2)),
    "reducescatter_async": lambda: md.reducescatter_async(torch.ones(2)),
    "grouped_reducescatter": lambda: md.grouped_reducescatter([torch.ones(2)]),
    "grouped_reducescatter_async": lambda: md.grouped_reducescatter_async([torch.ones(2)]),
    "barrier": md.barrier,
    "DistributedOptimizer": lambda: md.DistributedOptimizer(sgd()),
    "DistributedOptimizer(op=Adasum)": lambda: md.DistributedOptimizer(sgd(), op=md.Adasum),
    "broadcast_parameters": lambda: md.broadcast_parameters({"x": torch.ones(2)}, 0),
    "broadcast_optimizer_state": lambda: md.broadcast_optimizer_state(sgd(), 0),
    "broadcast_object": lambda: md.broadcast_object(1),
    "allgather_object": lambda: md.allgather_object(1),
    "DistributedSampler": lambda: md.DistributedSampler(4),
    "prepare_loader": lambda: md.prepare_loader(torch.utils.data.TensorDataset(torch.ones(4))),
    "Metrics.compute": lambda: md.Metrics().compute(),
    "scale_lr": lambda: md.scale_lr(0.1),
    "WarmupLR": lambda: md.WarmupLR(torch.optim.SGD([torch.ones(1)]), steps=3),
    "main_rank_first": lambda: md.main_rank_first().__enter__(),
    "seed_everything": lambda: md.seed_everything(1),
    "global_process_set.size": md.global_process_set.size,
    "global_process_set.rank": md.global_process_set.rank,
    "global_process_set.included": md.global_process_set.included,
    "global_process_set.ranks": lambda: md.global_process_set.ranks,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_is_refused_before_init(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"mydist has not been initialized; call mydist\.init\(\)"):
        call()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_is_refused_after_shutdown(call: Callable[[], object]) -> None:
    md.init()
    md.shutdown()
    with pytest.raises(ValueError, match=r"call mydist\.init\(\)"):
        call()


def test_shutdown_before_init_does_nothing() -> None:
    md.shutdown()
    assert not md.is_initialized()


def test_build_queries_work_before_init() -> None:
    built = [md.mpi_built(), md.gloo_built(), md.mpi_enabled(), md.gloo_enabled()]
    assert all(isinstance(answer, bool) for answer in built)
    # What was not built cannot be enabled.
    assert md.mpi_built() or not md.mpi_enabled()
    assert md.gloo_built() or not md.gloo_enabled()
    assert [md.rocm_built(), md.ccl_built(), md.ddl_built()] == [False] * 3
    assert isinstance(md.cuda_built(), bool)
    assert isinstance(md.nccl_built(), int)
    # NCCL is looked for by what is built with CUDA.
    assert md.cuda_built() or md.nccl_built() == 0
