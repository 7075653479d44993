"""Every call of a job of one rank takes tensors on the GPU, in the order of torch's streams."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import mydist as md
from mydist.compression import CastCompressor

Call = Callable[[torch.Tensor], torch.Tensor]

CALLS: dict[str, Call] = {
    "allreduce": lambda x: md.allreduce(x, name="x"),
    "allreduce_": lambda x: md.allreduce_(x.clone(), name="x"),
    "allreduce_async": lambda x: md.synchronize(md.allreduce_async(x, name="x")),
    "grouped_allreduce": lambda x: md.grouped_allreduce([x, x + 1], name="x")[0],
    "allgather": lambda x: md.allgather(x, name="x"),
    "broadcast": lambda x: md.broadcast(x, 0, name="x"),
    "alltoall": lambda x: md.alltoall(x, name="x"),
    "alltoall with splits": lambda x: md.alltoall(x, [len(x)], name="x")[0],
    "reducescatter": lambda x: md.reducescatter(x, name="x"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.complex64])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_rank_alone_gets_its_own_back(job: torch.device, call: Call, dtype: torch.dtype) -> None:
    tensor = torch.arange(24, device=job).to(dtype).reshape(6, 4)
    result = call(tensor)
    assert result.device == tensor.device
    assert torch.equal(result, tensor)


@pytest.mark.parametrize("compression", [md.Compression.fp16, md.Compression.bf16])
def test_compressed_tensors_are_rounded_once(
    job: torch.device, compression: type[CastCompressor]
) -> None:
    tensor = torch.randn(1001, device=job)
    expected = tensor.to(compression.wire_dtype).float()
    assert torch.equal(md.allreduce(tensor, name="x", compression=compression), expected)
    unaligned = tensor[1:]
    results = md.grouped_allreduce([tensor, unaligned], name="x", compression=compression)
    assert torch.equal(results[0], expected)
    assert torch.equal(results[1], expected[1:])
    md.allreduce_(unaligned, name="x", compression=compression)
    assert torch.equal(tensor[1:], expected[1:])


def test_layouts_that_are_not_dense(job: torch.device) -> None:
    tensor = torch.arange(24.0, device=job).reshape(4, 6)
    for view in (tensor.t(), tensor[:, 1:4], tensor[:1].expand(3, 6), tensor[:0], tensor[0, 0]):
        assert torch.equal(md.allreduce(view, name="x"), view)
    columns = tensor[:, 1:4]
    expected = columns * 2
    md.allreduce_(columns, name="x", prescale_factor=2.0)
    assert torch.equal(columns, expected)


def test_calls_are_ordered_behind_and_before_the_current_stream(job: torch.device) -> None:
    first, second = torch.cuda.Stream(job), torch.cuda.Stream(job)
    for step in range(20):
        with torch.cuda.stream(first):
            busy = torch.randn(1500, 1500, device=job)
            for _ in range(4):
                busy = busy @ busy / 40
            tensor = torch.full((1 << 20,), float(step), device=job) + busy.sum() * 0
            handle = md.allreduce_async(tensor, name="x", prescale_factor=3.0, op=md.Sum)
            del tensor
        with torch.cuda.stream(second):
            result = md.synchronize(handle)
            total = (result - 3 * step).abs().max()
            del result
        assert total.item() == 0


def test_enqueue_and_synchronize_return_while_the_gpu_is_busy(job: torch.device) -> None:
    tensor = torch.ones(1 << 16, device=job)
    md.allreduce(tensor, name="x")  # Opens what is opened once.
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(1_000_000_000)  # Cycles of the GPU: about half a second.
    handle = md.allreduce_async(tensor, name="x", prescale_factor=2.0, op=md.Sum)
    result = md.synchronize(handle)
    done.record()
    assert not done.query(), "the host has waited for the GPU"
    assert torch.equal(result, tensor * 2)


def test_a_capture_refuses_and_the_job_goes_on(job: torch.device) -> None:
    tensor = torch.ones(8, device=job)
    earlier = md.allreduce_async(tensor, name="earlier")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = tensor * 2
        with pytest.raises(ValueError, match=r"allreduce of 'x'.*captured into a CUDA graph"):
            md.allreduce(doubled, name="x")
        with pytest.raises(ValueError, match="captured into a CUDA graph"):
            md.synchronize(earlier)
    graph.replay()
    assert torch.equal(md.synchronize(earlier), tensor)
    assert torch.equal(md.allreduce(doubled, name="x"), tensor * 2)


def test_sparse_tensors_stay_on_the_gpu(job: torch.device) -> None:
    sparse = torch.eye(4, device=job).to_sparse()
    total = md.synchronize(md.sparse_allreduce_async(sparse, name="x"))
    assert total.device == sparse.device
    assert torch.equal(total.to_dense(), torch.eye(4, device=job))


def test_every_gpu_of_the_process_can_be_used(job: torch.device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    tensors = [torch.ones(5, device=f"cuda:{index}") for index in range(2)]
    for result, tensor in zip(md.grouped_allreduce(tensors, name="x"), tensors, strict=True):
        assert result.device == tensor.device
        assert torch.equal(result, tensor)


def test_starts_and_ends_with_tensors_in_between(gpu: torch.device) -> None:
    for _ in range(5):
        md.init()
        assert torch.equal(md.allreduce(torch.ones(3, device=gpu)), torch.ones(3, device=gpu))
        md.shutdown()
