"""Every call of a job of one rank takes tensors on the GPU, in the order of torch's streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from multiproc.every_collective import run_all
from multiproc.reference import DTYPES

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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_collective_of_a_rank_alone(job: torch.device, dtype: torch.dtype) -> None:
    run_all(md.global_process_set, dtype, "alone", job)


def test_more_calls_give_a_rank_alone_its_own_back(job: torch.device) -> None:
    tensor = torch.arange(6.0, device=job)
    others = [
        md.grouped_allgather([tensor, tensor + 1], name="x")[0],
        md.grouped_reducescatter([tensor, tensor + 1], name="y")[0],
        md.broadcast_(tensor.clone(), 0, name="z"),
        md.synchronize(md.reducescatter_async(tensor, op=md.Max, name="z")),
        md.allreduce(tensor, op=md.Adasum, name="z"),
    ]
    for other in others:
        assert other.device == tensor.device
        assert torch.equal(other, tensor)
    assert md.join() == 0
    assert md.allgather_object(tensor)[0].device == tensor.device


def test_gradients_go_through_calls(job: torch.device) -> None:
    tensor = torch.arange(6.0, device=job, requires_grad=True)
    weights = torch.arange(6.0, device=job)
    for call in (md.allreduce, md.allgather, md.reducescatter, md.alltoall):
        tensor.grad = None
        (call(tensor, name="x") * weights).sum().backward()  # type: ignore[operator]
        assert tensor.grad is not None
        assert torch.equal(tensor.grad, weights)


def test_batch_norm_of_a_rank_alone_is_that_of_torch(job: torch.device) -> None:
    torch.manual_seed(3)
    ours, theirs = md.SyncBatchNorm(5).to(job), torch.nn.BatchNorm1d(5).to(job)
    inputs = [torch.randn(64, 5, device=job) * 3 + 1]
    inputs.append(inputs[0].clone())
    for layer, input in zip((ours, theirs), inputs, strict=True):
        (layer(input.requires_grad_()) ** 3).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_a_checkpoint_comes_back_on_the_gpu(job: torch.device, tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2).to(job)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(1, 3, device=job)).sum().backward()
    optimizer.step()
    kept = layer.weight.detach().clone()
    checkpoint = md.Checkpoint(tmp_path, model=layer, optimizer=optimizer)
    checkpoint.save(1)
    with torch.no_grad():
        layer.weight.zero_()
    checkpoint.restore()
    assert layer.weight.device == job
    assert torch.equal(layer.weight, kept)
    assert optimizer.state[layer.weight]["momentum_buffer"].device == job


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


@pytest.mark.usefixtures("cuda")
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


@pytest.mark.usefixtures("cuda")
def test_enqueue_and_synchronize_return_while_the_gpu_is_busy(job: torch.device) -> None:
    tensor = torch.ones(1 << 16, device=job)
    # Opens what is opened once, and loads the kernels.
    md.allreduce(tensor, name="x", prescale_factor=2.0, op=md.Sum)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(1_000_000_000)  # Cycles of the GPU: about half a second.
    handle = md.allreduce_async(tensor, name="x", prescale_factor=2.0, op=md.Sum)
    result = md.synchronize(handle)
    done.record()
    assert not done.query(), "the host has waited for the GPU"
    assert torch.equal(result, tensor * 2)


@pytest.mark.usefixtures("cuda")
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


@pytest.mark.usefixtures("cuda")
def test_a_process_set_has_one_gpu_of_the_process(job: torch.device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    here, there = (torch.ones(5, device=f"cuda:{index}") for index in range(2))
    assert torch.equal(md.allreduce(here, name="x"), here)
    with pytest.raises(ValueError, match="is on GPU 1, .* process set 0 with GPU 0"):
        md.allreduce(there, name="y")
    assert torch.equal(md.allreduce(here, name="y"), here)


def test_starts_and_ends_with_tensors_in_between(gpu: torch.device) -> None:
    for _ in range(5):
        md.init()
        assert torch.equal(md.allreduce(torch.ones(3, device=gpu)), torch.ones(3, device=gpu))
        md.shutdown()
