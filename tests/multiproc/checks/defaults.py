"""Public calls while torch makes tensors elsewhere, of another dtype, or for inference only."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator

import torch

import mydist as md
from multiproc.registry import check


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    """torch.set_default_device, of a device without memory."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    """torch.set_default_dtype, of a dtype that holds few integers."""
    torch.set_default_dtype(torch.float16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "default_device": default_device,
    "device_context": lambda: torch.device("meta"),
    "default_dtype": default_dtype,
    "inference_mode": torch.inference_mode,
}


COUNT = itertools.count()


def made_folder() -> str:
    return tempfile.mkdtemp(prefix="mydist-defaults-")


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float32, device="cpu")


def objects() -> None:
    assert md.broadcast_object({"rank": md.rank()}, 0) == {"rank": 0}
    assert md.allgather_object(md.rank()) == list(range(md.size()))


def collectives() -> None:
    n = md.size()
    assert md.allreduce(ones(2), op=md.Sum).tolist() == [n, n]
    assert md.allreduce_(ones(2), op=md.Sum, compression=md.Compression.fp16).tolist() == [n, n]
    assert md.grouped_allreduce([ones(1), ones(2)], op=md.Max)[1].tolist() == [1, 1]
    assert md.allgather(ones(1)).tolist() == [1] * n
    assert md.grouped_allgather([ones(1)])[0].shape == (n,)
    assert md.broadcast(ones(2), 0).tolist() == [1, 1]
    assert md.alltoall(ones(n), splits=[1] * n)[1].tolist() == [1] * n
    assert md.reducescatter(ones(n), op=md.Sum).tolist() == [n]
    assert md.scatter(ones(n)).tolist() == [1]
    for result, on_root in ((md.reduce(ones(1), 0, op=md.Sum), [n]), (md.gather(ones(1)), [1] * n)):
        assert (None if result is None else result.tolist()) == (on_root if not md.rank() else None)
    md.barrier()


def gradients() -> None:
    leaf = ones(2).requires_grad_()
    for call in (md.allreduce, md.allgather, lambda x: md.broadcast(x, 0), md.reducescatter):
        result = call(leaf)
        if result.requires_grad:  # Not in inference mode.
            result.sum().backward()
    assert leaf.grad is None or leaf.grad.device.type == "cpu"


def sparse() -> None:
    tensor = torch.sparse_coo_tensor(
        torch.tensor([[1]], device="cpu"), ones(1), (3,), device="cpu", check_invariants=False
    )
    result = md.synchronize(md.sparse_allreduce_async(tensor, op=md.Sum))
    assert result.to_dense().tolist() == [0, md.size(), 0]


def process_sets() -> None:
    if md.size() > 1:
        first = md.add_process_set([0])
        md.remove_process_set(first)


def metrics() -> None:
    collected = md.Metrics()
    collected.update(loss=1.0 + 2.0**-20 + md.rank() * 0.0, weight=3)
    assert collected.compute() == {"loss": 1.0 + 2.0**-20}


def sampler() -> None:
    samples = md.allgather_object(list(md.DistributedSampler(4 * md.size(), seed=3)))
    assert sorted(sum(samples, [])) == list(range(4 * md.size()))


def loader() -> None:
    batches = list(md.prepare_loader(range(4 * md.size()), batch_size=2, collate_fn=list))
    everything = md.allgather_object(sum(batches, []))
    assert sorted(sum(everything, [])) == list(range(4 * md.size()))


def small_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1, device="cpu", dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    wrapped: torch.optim.Optimizer = md.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    return model, wrapped


def training() -> None:
    """Where state exists on the root only, the others make it, and can go on with it."""
    with torch.inference_mode(False):
        model, optimizer = small_model()
    md.broadcast_parameters(model.state_dict(), 0)
    if md.rank() == 0:
        with torch.inference_mode(False):
            for parameter in model.parameters():
                optimizer.state[parameter] = {
                    "step": torch.zeros((), device="cpu", dtype=torch.float32),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
    md.broadcast_optimizer_state(optimizer, 0)
    md.check_consistency(model)
    with torch.inference_mode(False):
        model(ones(1, 2)).sum().backward()
        optimizer.step()
    md.check_consistency(model)


def combined_steps() -> None:
    with torch.inference_mode(False):
        model = torch.nn.Linear(2, 1, device="cpu", dtype=torch.float32)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        names = [(f"combined.{name}", p) for name, p in model.named_parameters()]
        optimizer = md.DistributedOptimizer(plain, named_parameters=names, op=md.Adasum)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        md.broadcast_parameters(model.state_dict(), 0)
        with torch.device("cpu"):  # torch's scaler keeps its own numbers on the default device.
            loss = scaler.scale(model(ones(1, 2)).sum())
        loss.backward()
        scaler.step(optimizer)


def sharded_steps() -> None:
    folder = md.broadcast_object(made_folder() if md.rank() == 0 else "", 0)
    for stage in (1, 2):
        with torch.inference_mode(False):
            model = torch.nn.Linear(2, 1, device="cpu", dtype=torch.float32)
            md.broadcast_parameters(model.state_dict(), 0)
            optimizer = md.ShardedOptimizer(
                torch.optim.AdamW(model.parameters()), model.named_parameters(), stage
            )
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
            with torch.device("cpu"):  # torch's scaler keeps its own numbers on the default device.
                loss = scaler.scale(model(ones(1, 2)).sum())
            loss.backward()
            scaler.unscale_(optimizer)
            assert optimizer.clip_grad_norm_(1.0).dtype == torch.float32
            scaler.step(optimizer)
            md.scatter_state(optimizer, md.gather_state(optimizer))
            # The second one has slices to restore.
            for _ in range(2):
                with md.Checkpoint(
                    f"{folder}/{stage}",
                    model=model,
                    optimizer=optimizer,
                    sharded=True,
                    on_sigterm=False,
                ) as checkpoint:
                    checkpoint.save(1)
    md.barrier()
    shutil.rmtree(folder, ignore_errors=True)


def tables() -> None:
    name = f"defaults.{next(COUNT)}"
    rows = md.ps.RowTable(f"{name}.rows", 9, 2, md.ps.SGD(lr=1.0), md.ps.Zeros())
    with torch.inference_mode(False):
        ids = torch.tensor([3], dtype=torch.int64, device="cpu")
        assert rows.embedding(ids).tolist() == [[0, 0]]
    table = md.ps.Table(f"{name}.dense", ones(2, 2), md.ps.SGD(lr=1.0))
    broken = ones(2, 2)
    broken[1, 0] = math.nan
    try:
        table.push(broken)
    except ValueError as error:
        assert " is nan at index (1, 0);" in str(error), error
    else:
        raise AssertionError("a gradient of NaN was taken")
    md.barrier()


def layers() -> None:
    layer = md.SyncBatchNorm(2, device="cpu", dtype=torch.float32)
    assert layer(ones(2, 2) * md.rank()).shape == (2, 2)


def checkpoints() -> None:
    with torch.inference_mode(False):
        model = torch.nn.Linear(2, 1, device="cpu", dtype=torch.float32)
    folder = md.broadcast_object(made_folder() if md.rank() == 0 else "", 0)
    for _ in range(2):
        with md.Checkpoint(folder, model=model, on_sigterm=False) as checkpoint:
            assert not checkpoint.should_stop()
            checkpoint.save(1)
    assert checkpoint.step == 1
    md.barrier()
    shutil.rmtree(folder, ignore_errors=True)


def other_calls() -> None:
    with md.main_rank_first():
        pass
    md.seed_everything(1)
    assert md.scale_lr(0.5) > 0
    md.stats()
    md.explain()


CALLS = (
    objects,
    collectives,
    gradients,
    sparse,
    process_sets,
    metrics,
    sampler,
    loader,
    training,
    combined_steps,
    sharded_steps,
    tables,
    layers,
    checkpoints,
    other_calls,
)


@check(cases=[(setting,) for setting in SETTINGS])
def every_call_under(setting: str) -> None:
    failures = []
    for call in CALLS:
        try:
            with SETTINGS[setting]():
                call()
        except Exception as error:
            failures.append(f"{call.__name__}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)
