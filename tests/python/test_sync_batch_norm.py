"""SyncBatchNorm in a job of one rank, its conversion from torch's layers, and its wrong uses."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mydist as md
from mydist.training import batch_statistics


def untyped(value: object) -> Any:
    """A wrong argument that the type checker must not see."""
    return value


@pytest.mark.parametrize(
    "options",
    [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.5}],
    ids=str,
)
@pytest.mark.usefixtures("job")
def test_one_rank_is_torch_itself(options: dict[str, Any]) -> None:
    local, ours = torch.nn.BatchNorm1d(3, **options), md.SyncBatchNorm(3, **options)
    for _ in range(3):
        batch = torch.randn(5, 3)
        assert torch.equal(ours(batch), local(batch))
    assert ours.state_dict().keys() == local.state_dict().keys()
    for name, value in local.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    local.eval()
    ours.eval()
    assert torch.equal(ours(batch), local(batch))


@pytest.mark.usefixtures("no_job")
def test_eval_mode_needs_no_job_and_training_says_so() -> None:
    layer = md.SyncBatchNorm(3)
    with pytest.raises(ValueError, match=r"mydist\.init\(\)"):
        layer(torch.ones(4, 3))
    assert layer.eval()(torch.ones(4, 3)).shape == (4, 3)


def model() -> torch.nn.Sequential:
    shared = torch.nn.BatchNorm1d(4)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 4),
        shared,
        torch.nn.Sequential(torch.nn.BatchNorm1d(4, eps=0.5, momentum=None, affine=False), shared),
        torch.nn.BatchNorm3d(4, track_running_stats=False, dtype=torch.float64),
        torch.nn.InstanceNorm1d(4),
        torch.nn.BatchNorm2d(7).half().eval(),
    )


@pytest.mark.parametrize(
    "convert", [md.convert_sync_batchnorm, md.SyncBatchNorm.convert_sync_batchnorm]
)
def test_conversion_keeps_what_a_layer_has(convert: Any) -> None:
    before = model()
    before[1].qconfig = "as it was"
    before[1].num_batches_tracked.fill_(12)
    layers = dict(before.named_modules(remove_duplicate=False))
    after = convert(before)
    assert after is before
    converted = dict(after.named_modules(remove_duplicate=False))
    assert converted.keys() == layers.keys()
    for name, old in layers.items():
        new = converted[name]
        if not isinstance(old, torch.nn.modules.batchnorm._BatchNorm):
            assert new is old
            continue
        assert type(new) is md.SyncBatchNorm
        for attribute in ("num_features", "eps", "momentum", "affine", "track_running_stats"):
            assert getattr(new, attribute) == getattr(old, attribute), attribute
        assert new.training is old.training
        for kept in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            assert getattr(new, kept) is getattr(old, kept), kept
    assert converted["1"] is converted["2.1"], "a layer used twice must stay one"
    assert converted["1"].qconfig == "as it was" and not hasattr(converted["5"], "qconfig")
    assert converted["5"].weight.dtype == torch.float16 and not converted["5"].training


def test_converting_a_layer_gives_a_new_one() -> None:
    layer = torch.nn.BatchNorm2d(3)
    result = md.convert_sync_batchnorm(layer)
    assert isinstance(result, md.SyncBatchNorm) and result.weight is layer.weight
    plain = torch.nn.Linear(2, 2)
    assert md.convert_sync_batchnorm(plain) is plain


def test_torch_sync_batch_norm_is_converted_too() -> None:
    result = md.convert_sync_batchnorm(torch.nn.SyncBatchNorm(3))
    assert isinstance(result, md.SyncBatchNorm)


def test_a_lazy_layer_is_refused() -> None:
    lazy = torch.nn.Sequential(torch.nn.LazyBatchNorm1d())
    with pytest.raises(ValueError, match="LazyBatchNorm1d does not know its number of features"):
        md.convert_sync_batchnorm(lazy)


@pytest.mark.usefixtures("job")
def test_copies_work_alone() -> None:
    layer = md.SyncBatchNorm(3)
    layer._call_name = "sync_batch_norm.object.7"
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert made._call_name is None and made.process_set is layer.process_set
        assert made.weight is not layer.weight
        assert made(torch.randn(4, 3)).shape == (4, 3)


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    ("batch", "error", "text"),
    [
        (torch.ones(3), ValueError, r"expected at least 2D input \(got 1D input\)"),
        (torch.tensor(1.0), ValueError, r"expected at least 2D input \(got 0D input\)"),
        (
            torch.ones(2, 4),
            ValueError,
            r"got 4 channels \(shape \[2, 4\]\), expected num_features=3",
        ),
        (
            torch.ones(2, 3, dtype=torch.int32),
            TypeError,
            "got an input of torch.int32, expected fl",
        ),
        (torch.ones(1, 3), ValueError, "Expected more than 1 value per channel when training"),
    ],
)
def test_wrong_inputs(batch: torch.Tensor, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        md.SyncBatchNorm(3)(batch)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="num_features is 0, expected at least 1"):
        md.SyncBatchNorm(0)
    with pytest.raises(TypeError, match="SyncBatchNorm: process_set is 3 .int., expected a Proc"):
        md.SyncBatchNorm(3, process_set=untyped(3))
    with pytest.raises(TypeError, match="convert_sync_batchnorm: process_set is 'all'"):
        md.convert_sync_batchnorm(torch.nn.Linear(1, 1), untyped("all"))
    with pytest.raises(TypeError, match=r"got list, expected a torch\.nn\.Module"):
        md.convert_sync_batchnorm(untyped([torch.nn.BatchNorm1d(3)]))


class StaysOnTheGpu(TorchDispatchMode):
    """Refuses what would make the host wait for a GPU: copies from and to it, and its values."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "asks for a value"
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        assert len({tensor.device.type for tensor in tensors}) <= 1, f"{func} mixes devices"
        return result


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_leaves_a_gpu_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, momentum: float | None
) -> None:
    """Fake CUDA tensors have no values, but refuse what mixes devices, without any GPU."""
    sent: list[torch.Tensor] = []
    counts: list[int] = []

    def collective(tensor: torch.Tensor, op: object = None, **_: object) -> torch.Tensor:
        sent.append(tensor)
        return torch.cat([tensor, tensor]) if op is None else tensor.clone()

    def count_on_all_ranks(count: int, *_: object) -> int:
        counts.append(count)
        return 2 * count

    monkeypatch.setattr(batch_statistics, "allgather", collective)
    monkeypatch.setattr(batch_statistics, "allreduce", collective)
    monkeypatch.setattr(batch_statistics, "_count_on_all_ranks", count_on_all_ranks)
    function, ctx = batch_statistics._Normalize, SimpleNamespace()
    ctx.save_for_backward = lambda *tensors: setattr(ctx, "saved_tensors", tensors)
    with FakeTensorMode():
        layer = md.SyncBatchNorm(3, momentum=momentum, device="cuda")
        layer.running_mean = layer.running_var = None  # copy_ to them wants a real GPU
        batch = torch.empty(4, 3, 5, dtype=dtype, device="cuda")
        weight, bias = torch.empty(3, device="cuda"), torch.empty(3, device="cuda")
        with StaysOnTheGpu():
            statistics = batch_statistics.gather_statistics(batch, md.global_process_set, "layer")
            layer._track(statistics)
            output = function.forward(
                ctx, batch, weight, bias, statistics, 1e-5, "layer", md.global_process_set
            )
            gradients = function.backward(ctx, output)[:3]
    assert (output.device.type, output.dtype) == ("cuda", dtype)
    for gradient, of in zip(gradients, (batch, weight, bias), strict=True):
        assert gradient is not None
        assert (gradient.device, gradient.dtype, gradient.shape) == (of.device, of.dtype, of.shape)
    assert [tensor.device.type for tensor in sent] == ["cuda", "cuda"]
    assert counts == [20] and statistics.count == 40
