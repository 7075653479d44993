"""Programs of torch that split a model or its state, as checks: FSDP2, DTensor, tensor and pipeline
parallelism, distributed checkpoints, compiled collectives.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from multiproc.group_checks import new_checks, rank, size
from multiproc.torch_programs import batch_of, gradients_of_all, model

SHARDED, check = new_checks()


def mesh_of_all() -> DeviceMesh:
    return init_device_mesh("cpu", (size(),))


def whole_gradients(module: nn.Module) -> list[torch.Tensor]:
    gradients = [parameter.grad for parameter in module.parameters()]
    assert all(isinstance(gradient, DTensor) for gradient in gradients)
    return [gradient.full_tensor() for gradient in gradients]  # type: ignore[union-attr]


def expect_gradients(module: nn.Module, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for own, expected in zip(whole_gradients(module), gradients_of_all(), strict=True):
        torch.testing.assert_close(own, expected, rtol=rtol, atol=atol)


@check
def fully_sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    sharded = model()
    for layer in (sharded[0], sharded[2], sharded):  # type: ignore[index]
        fully_shard(layer)
    sharded(batch_of(rank())).square().mean().backward()
    expect_gradients(sharded)
    expected = torch.stack([gradient.norm() for gradient in gradients_of_all()]).norm()
    norm = torch.nn.utils.clip_grad_norm_(sharded.parameters(), 0.01)
    torch.testing.assert_close(norm.full_tensor(), expected)  # type: ignore[attr-defined]
    clipped = torch.stack([gradient.norm() for gradient in whole_gradients(sharded)]).norm()
    torch.testing.assert_close(clipped, torch.tensor(0.01), rtol=1e-3, atol=0)


@check
def fully_sharded_in_low_precision() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for compute, reduce, tolerance in (
        (torch.bfloat16, torch.float32, 0.05),
        (torch.bfloat16, torch.bfloat16, 0.05),
        (torch.float16, torch.float16, 0.01),
    ):
        sharded = model()
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce)
        for layer in (sharded[0], sharded):  # type: ignore[index]
            fully_shard(layer, mp_policy=policy)
        sharded(batch_of(rank())).square().mean().backward()
        expect_gradients(sharded, rtol=tolerance, atol=tolerance / 10)


@check
def fully_sharded_with_a_divisor() -> None:
    from torch.distributed.fsdp import fully_shard

    sharded = model()
    fully_shard(sharded)
    sharded.set_gradient_divide_factor(4.0)  # type: ignore[operator]
    sharded(batch_of(rank())).square().mean().backward()
    for own, expected in zip(whole_gradients(sharded), gradients_of_all(), strict=True):
        torch.testing.assert_close(own, expected * size() / 4)


@check
def sharded_in_replicas() -> None:
    """HSDP: pairs of ranks split the model, and the pairs are replicas."""
    from torch.distributed.fsdp import fully_shard

    inner = 2 if size() % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (size() // inner, inner), mesh_dim_names=("copies", "parts"))
    sharded = model()
    for layer in (sharded[0], sharded):  # type: ignore[index]
        fully_shard(layer, mesh=mesh)
    for step in range(2):  # The first one keeps its gradients here.
        sharded.set_requires_gradient_sync(step == 1)  # type: ignore[operator]
        (sharded(batch_of(rank())).square().mean() / 2).backward()
    expect_gradients(sharded)


@check
def distributed_tensors() -> None:
    mesh = mesh_of_all()
    for full in (torch.arange(48.0).view(12, 4), torch.arange(35.0).view(7, 5)):
        shards = distribute_tensor(full, mesh, [Shard(0)])
        assert torch.equal(shards.redistribute(mesh, [Shard(1)]).full_tensor(), full)
        assert torch.equal(shards.redistribute(mesh, [Replicate()]).to_local(), full)
    parts = DTensor.from_local(torch.full((6, 2), rank() + 1.0), mesh, [Partial()])
    total = torch.full((6, 2), size() * (size() + 1) / 2)
    assert torch.equal(parts.redistribute(mesh, [Shard(0)]).full_tensor(), total)
    assert torch.equal(parts.full_tensor(), total)
    left, right = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)), torch.eye(8)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    torch.testing.assert_close(product.full_tensor(), left)


@check
def tensor_parallel_layers() -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def with_a_norm() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(8), *model().children())

    whole, parts = with_a_norm(), with_a_norm()
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(),
    }
    mesh = mesh_of_all()
    parallelize_module(parts, mesh, plan)
    batch = torch.randn(4 * size(), 8, generator=torch.Generator().manual_seed(9))
    output = parts(distribute_tensor(batch, mesh, [Shard(0)]))
    torch.testing.assert_close(output, whole(batch))
    output.square().mean().backward()
    whole(batch).square().mean().backward()
    for own, expected in zip(whole_gradients(parts), whole.parameters(), strict=True):
        torch.testing.assert_close(own, expected.grad)


@check
def a_pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(size())]
    stage = PipelineStage(layers[rank()], rank(), size(), torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, _: out.square().mean())
    batch = torch.randn(8, 8, generator=torch.Generator().manual_seed(3))
    last = rank() == size() - 1
    schedule.step(*([batch] if rank() == 0 else []), **({"target": batch} if last else {}))
    own = [parameter.grad for parameter in layers[rank()].parameters()]
    for layer in layers:
        layer.zero_grad()
    for micro in batch.chunk(4):
        (nn.Sequential(*layers)(micro).square().mean() / 4).backward()
    for gradient, parameter in zip(own, layers[rank()].parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


@contextmanager
def folder_of_all() -> Iterator[str]:
    """One that all ranks see, until all have left it."""
    folder = [tempfile.mkdtemp() if rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    yield folder[0]
    dist.barrier()
    if rank() == 0:
        shutil.rmtree(folder[0])


@check
def checkpoints() -> None:
    import torch.distributed.checkpoint as dcp

    state = {"same": torch.ones(4), f"own {rank()}": torch.full((3,), float(rank()))}
    for save in (dcp.save, lambda *args, **options: dcp.async_save(*args, **options).result()):
        with folder_of_all() as folder:
            save(state, checkpoint_id=folder)
            loaded = {name: torch.zeros_like(value) for name, value in state.items()}
            dcp.load(loaded, checkpoint_id=folder)
            assert all(torch.equal(loaded[name], state[name]) for name in state)


@check
def checkpoints_of_other_shards() -> None:
    """A model that all ranks have saved is loaded by fewer, and cut otherwise."""
    import torch.distributed.checkpoint as dcp

    full = torch.arange(60.0).view(12, 5)
    fewer = list(range(max(size() - 1, 1)))
    group = dist.new_group(fewer)
    with folder_of_all() as folder:
        saved = distribute_tensor(full, mesh_of_all(), [Shard(0)])
        dcp.save({"weight": saved}, checkpoint_id=folder)
        for placement in (Shard(1), Replicate()):
            zeros = distribute_tensor(torch.zeros(12, 5), mesh_of_all(), [placement])
            dcp.load({"weight": zeros}, checkpoint_id=folder)
            assert torch.equal(zeros.full_tensor(), full)
        if rank() in fewer:
            mesh = DeviceMesh.from_group(group, "cpu")
            zeros = distribute_tensor(torch.zeros(12, 5), mesh, [Shard(0)])
            dcp.load({"weight": zeros}, checkpoint_id=folder, process_group=group)
            assert torch.equal(zeros.full_tensor(), full)


@check
def compiled_collectives() -> None:
    from torch.distributed import _functional_collectives as functional

    world = dist.group.WORLD
    assert world is not None

    def several(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        summed = functional.all_reduce(tensor * 2, "sum", world) + 1
        gathered = functional.all_gather_tensor(tensor, 0, world)
        scattered = functional.reduce_scatter_tensor(gathered, "avg", 0, world)
        exchanged = functional.all_to_all_single(gathered, None, None, world)
        return summed, gathered, scattered, exchanged

    compiled = torch.compile(several, backend="aot_eager", fullgraph=True)
    tensor = torch.arange(4.0) + rank()
    summed, gathered, scattered, exchanged = compiled(tensor)
    inputs = [torch.arange(4.0) + other for other in range(size())]
    assert torch.equal(summed, torch.stack(inputs).sum(0) * 2 + 1)
    assert torch.equal(gathered, torch.cat(inputs))
    assert torch.equal(scattered, inputs[rank()])  # All ranks gave the same.
    assert torch.equal(exchanged, inputs[rank()].repeat(size()))


@check
def compiled_data_parallel() -> None:
    parallel = nn.parallel.DistributedDataParallel(model())
    compiled = torch.compile(parallel, backend="aot_eager")
    compiled(batch_of(rank())).square().mean().backward()
    for parameter, expected in zip(parallel.parameters(), gradients_of_all(), strict=True):
        torch.testing.assert_close(parameter.grad, expected)
