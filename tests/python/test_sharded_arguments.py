"""What ShardedOptimizer refuses, in a job of one rank; and what one rank alone trains."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import mydist as md

pytestmark = pytest.mark.usefixtures("job")


class Mine(torch.optim.SGD):
    """A class that mydist does not know."""


def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 5)


def adamw(model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stage": 3}, r"stage is 3, expected 1 or 2; .* md.fully_shard\(model\)"),
        ({"stage": 0}, "stage is 0, expected 1 or 2"),
        ({"stage": "1"}, "stage is '1'"),
        ({"offload": "nvme"}, "offload is 'nvme', expected 'cpu' or None"),
        ({"share_parameters": 1}, "share_parameters is 1 .int., expected True or False"),
        ({"accumulate": "none"}, "accumulate is 'none', expected 'shard' or 'full'"),
        ({"partition": "row"}, "partition is 'row', expected 'element', 'parameter' or None"),
        ({"master_dtype": torch.int32}, "master_dtype is torch.int32, expected torch.float32"),
        ({"master_dtype": "float32"}, "master_dtype is 'float32'"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step is 0"),
        ({"compression": 3}, "compression is 3"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        md.ShardedOptimizer(adamw(linear()), **options)


def test_offload_of_parameters_on_the_cpu_says_that_it_changes_nothing() -> None:
    with pytest.warns(UserWarning, match="offload='cpu' changes nothing"):
        optimizer = md.ShardedOptimizer(adamw(linear()), offload="cpu")
    assert not optimizer.state


def test_fully_shard_refuses_offload() -> None:
    with pytest.raises(ValueError, match="offload is 'cpu', expected None: .*CPUOffloadPolicy"):
        md.fully_shard(linear(), offload="cpu")


def test_an_unknown_class_is_refused_with_both_choices() -> None:
    model = linear()
    with pytest.raises(ValueError, match="Mine .* partition='element'.*partition='parameter'"):
        md.ShardedOptimizer(Mine(model.parameters(), lr=0.1, momentum=0.9))
    for partition in ("element", "parameter"):
        optimizer = md.ShardedOptimizer(
            Mine(model.parameters(), lr=0.1, momentum=0.9), partition=partition
        )
        assert isinstance(optimizer, Mine)


@pytest.mark.parametrize("name", ["Muon", "Adafactor"])
def test_classes_that_need_whole_parameters_are_not_cut(name: str) -> None:
    model = torch.nn.Linear(3, 5, bias=False)
    with pytest.raises(ValueError, match=f"'element', but {name} needs whole parameters"):
        md.ShardedOptimizer(getattr(torch.optim, name)(model.parameters()), partition="element")


def test_lbfgs_and_differentiable_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="LBFGS is not supported"):
        md.ShardedOptimizer(torch.optim.LBFGS(linear().parameters()))
    with pytest.raises(ValueError, match="differentiable=True"):
        md.ShardedOptimizer(adamw(linear(), differentiable=True))


def test_parameters_that_cannot_be_cut_are_refused_by_name() -> None:
    model = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="parameter 'weight' is not contiguous"):
        md.ShardedOptimizer(adamw(model), model.named_parameters())
    with pytest.raises(ValueError, match="share_parameters is True, .* are on meta"):
        md.ShardedOptimizer(adamw(linear().to("meta")), share_parameters=True)
    mixed = torch.nn.ModuleDict({"a": linear(), "b": torch.nn.Linear(2, 2, device="meta")})
    with pytest.raises(ValueError, match=r"'a.weight' is on cpu, 'b.weight' is on meta"):
        md.ShardedOptimizer(adamw(mixed), mixed.named_parameters())


@pytest.mark.parametrize("stage", [1, 2])
def test_a_sparse_gradient_is_an_error_that_names_the_layer(stage: int) -> None:
    model = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = md.ShardedOptimizer(adamw(model), model.named_parameters(), stage)
    with pytest.raises(ValueError, match="gradient of 'weight' is sparse.*sparse=False"):
        model(torch.tensor([1])).sum().backward()
        optimizer.step()


def test_state_of_another_shape_is_refused() -> None:
    model = linear()
    plain = adamw(model)
    plain.state[model.weight]["factors"] = torch.zeros(7)
    with pytest.raises(ValueError, match=r"'factors' of parameter 'weight' has the shape \[7\]"):
        md.ShardedOptimizer(plain, model.named_parameters())


def test_a_whole_state_of_other_shapes_is_refused_with_all_differences() -> None:
    model, other = linear(), torch.nn.Linear(2, 4)
    optimizer, plain = md.ShardedOptimizer(adamw(model), model.named_parameters()), adamw(other)
    other(torch.ones(2)).sum().backward()
    plain.step()
    words = r"'exp_avg' of parameter 'weight' .* \[4, 2\], expected \[5, 3\];.*'bias' .* \[4\]"
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match=words):
        md.scatter_state(optimizer, plain.state_dict())


def test_sgd_without_momentum_gets_a_warning_in_stage_1() -> None:
    with pytest.warns(UserWarning, match="SGD without momentum has no state"):
        md.ShardedOptimizer(torch.optim.SGD(linear().parameters(), lr=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        md.ShardedOptimizer(torch.optim.SGD(linear().parameters(), lr=0.1), stage=2)


@pytest.mark.parametrize("stage", [1, 2])
def test_one_rank_leaves_unused_parameters_without_a_gradient(stage: int) -> None:
    model = torch.nn.ModuleList([linear(), linear()])
    optimizer = md.ShardedOptimizer(adamw(model), model.named_parameters(), stage)
    before = model[1].weight.detach().clone()
    model[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert torch.equal(model[1].weight, before)  # No weight decay either.
    assert model[1].weight not in optimizer.state


def test_a_slice_in_state_dict_is_for_saving(tmp_path: Path) -> None:
    model = linear()
    optimizer = md.ShardedOptimizer(adamw(model), model.named_parameters())
    md.prepare_state(optimizer)
    state = optimizer.state_dict()
    part = state["state"][0]["exp_avg"]
    with pytest.raises(RuntimeError, match="add.* numbers are in its attribute 'local'"):
        part + 1
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt")
    assert type(loaded["state"][0]["exp_avg"]) is torch.Tensor
    optimizer.load_state_dict(loaded)
    with pytest.raises(TypeError, match="expected what ShardedOptimizer returned"):
        md.prepare_state(adamw(model))


def test_complex_parameters_are_trained() -> None:
    values = torch.tensor([1 + 2j, 3 - 1j, -1j])
    own, plain = (torch.nn.Parameter(values.clone()) for _ in range(2))
    optimizer = md.ShardedOptimizer(torch.optim.Adam([own], lr=0.1), stage=2)
    reference = torch.optim.Adam([plain], lr=0.1)
    for _ in range(2):
        own.abs().sum().backward()
        optimizer.step()
        reference.zero_grad()
        plain.abs().sum().backward()
        reference.step()
    assert torch.equal(own, plain)


def test_messages_name_the_sharded_optimizer() -> None:
    optimizer = md.ShardedOptimizer(adamw(linear()))
    with pytest.raises(TypeError, match="a ShardedOptimizer can be neither copied nor pickled"):
        copy.deepcopy(optimizer)
    replaced = adamw(linear())
    replaced.step = lambda: None  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="wrap the optimizer with ShardedOptimizer first"):
        md.ShardedOptimizer(replaced)
