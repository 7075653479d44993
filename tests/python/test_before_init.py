"""Calls outside init … shutdown are refused with a hint, whatever they are."""

from __future__ import annotations

import pytest
import torch
from soon import soon

import mydist as md

pytestmark = pytest.mark.usefixtures("no_job")


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)


sgd()  # For its first optimizer, torch imports for seconds.
T = torch.ones(2)
# Expressions, without any blank in one.
CALLS = """
md.rank() md.size() md.local_rank() md.local_size() md.cross_rank() md.cross_size()
md.is_homogeneous() md.mpi_threads_supported() md.stats() md.explain()
md.start_timeline("t.json") md.stop_timeline()
md.allreduce(T) md.allreduce_(T) md.allreduce_async(T) md.allreduce_async_(T)
md.grouped_allreduce([T]) md.grouped_allreduce_([T]) md.grouped_allreduce_async([T])
md.grouped_allreduce_async_([T]) md.sparse_allreduce_async(T.to_sparse())
md.reducescatter(T) md.reducescatter_async(T) md.grouped_reducescatter([T])
md.grouped_reducescatter_async([T]) md.reduce(T,0) md.reduce_async(T,0)
md.allgather(T) md.allgather_async(T) md.grouped_allgather([T]) md.grouped_allgather_async([T])
md.broadcast(T,0) md.broadcast_(T,0) md.broadcast_async(T,0) md.broadcast_async_(T,0)
md.alltoall(T) md.alltoall_async(T) md.gather(T) md.gather_async(T) md.scatter(T)
md.scatter_async(T) md.send(T,1) md.send_async(T,1) md.recv(T,1) md.recv_async(T,1)
md.barrier() md.join()
md.add_process_set([0]) md.remove_process_set(md.ProcessSet([0]))
md.ProcessSet([0]).included() md.ProcessSet([0]).rank()
md.global_process_set.size() md.global_process_set.rank() md.global_process_set.included()
md.global_process_set.ranks
md.DistributedOptimizer(sgd()) md.DistributedOptimizer(sgd(),op=md.Adasum)
md.broadcast_parameters({"x":T},0) md.broadcast_optimizer_state(sgd(),0)
md.check_consistency({"x":T}) md.broadcast_object(1) md.allgather_object(1)
md.DistributedSampler(4) md.prepare_loader(torch.utils.data.TensorDataset(T))
md.Metrics().compute() md.scale_lr(0.1) md.WarmupLR(sgd(),steps=3)
md.main_rank_first().__enter__() md.seed_everything(1)
""".split()  # noqa: SIM905


@pytest.mark.parametrize("after_shutdown", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_is_refused_outside_of_a_job(call: str, after_shutdown: bool) -> None:
    if after_shutdown:
        md.init()
        md.shutdown()
    text = r"mydist has not been initialized; call mydist\.init\(\)"
    with soon(), pytest.raises(ValueError, match=text):
        eval(call)


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
