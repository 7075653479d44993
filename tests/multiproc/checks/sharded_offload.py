"""ShardedOptimizer(offload="cpu"), with memory of the CPU in place of a GPU's."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

import mydist as md
from multiproc.checks.models import expect_equal_parameters
from multiproc.checks.sharded import BY_STAGE, sharded, train, uneven_model
from multiproc.checks.sharded_checkpoints import opened, shared_folder
from multiproc.registry import check
from mydist.optim.sharded import optimizer as maker
from mydist.optim.sharded import slices


@contextmanager
def a_gpu() -> Iterator[None]:
    """Parameters on the CPU are taken for some on a GPU."""
    with (
        mock.patch.object(maker, "leaves_for_cpu", lambda _: True),
        mock.patch.object(slices, "leaves_for_cpu", lambda _: True),
    ):
        yield


@check(cases=itertools.product((1, 2), (torch.float64, torch.bfloat16), ("element", "parameter")))
def offloaded_slices_get_the_same_bits(stage: int, dtype: torch.dtype, partition: str) -> None:
    options = {"partition": partition}
    if dtype == torch.bfloat16:
        options["master_dtype"] = torch.float32
    model, other = uneven_model(dtype), uneven_model(dtype)
    with a_gpu():
        optimizer = sharded(model, stage, offload="cpu", **options)
    reference = sharded(other, stage, **options)
    for one in (model, other):
        with torch.no_grad():
            one[0].weight.mul_(2)  # What the program changes counts.
    for one, its in ((model, optimizer), (other, reference)):
        train(one, its, range(3))
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    expect_equal_parameters(model)
    own = {p.data_ptr() for p in model.parameters()}
    for values in optimizer.state.values():
        assert values["master"].data_ptr() not in own
        assert values["exp_avg"].dtype == values["master"].dtype


@check(cases=BY_STAGE)
def offloaded_state_is_saved_and_counted(stage: int) -> None:
    with shared_folder() as folder, a_gpu():
        model = uneven_model()
        optimizer = sharded(model, stage, offload="cpu")
        train(model, optimizer, range(2))
        use = optimizer.memory()
        assert use.optimizer == 0
        own = sum(piece.flat.numel() for piece in optimizer._slices.pieces())
        assert use.offloaded == 3 * 8 * own
        plan = md.memory_plan(model, stage, md.size(), torch.optim.AdamW, offload="cpu")
        assert plan.use.offloaded == max(md.allgather_object(use.offloaded))
        opened(folder, model, optimizer, sharded=True).save(2)
        saved = copy.deepcopy(optimizer.state_dict())
        parameters = model.state_dict()
        whole = md.gather_state(optimizer)
        others = []
        for way in ("files", "slices", "whole"):
            other = uneven_model()
            again = sharded(other, stage, offload="cpu")
            if way == "files":
                opened(folder, other, again)
            else:
                other.load_state_dict(parameters)
            if way == "slices":
                again.load_state_dict(saved)
            if way == "whole":
                md.scatter_state(again, whole)
            others.append((other, again))
        train(model, optimizer, range(2, 4))
        for other, again in others:
            train(other, again, range(2, 4))
            assert all(map(torch.equal, model.parameters(), other.parameters()))
