"""ShardedOptimizer(share_parameters=True): one copy of the parameters for the ranks of a host."""

from __future__ import annotations

import errno
import itertools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

import mydist as md
from multiproc.checks.models import expect_equal_parameters, raises
from multiproc.checks.sharded import (
    BY_STAGE,
    expect_same,
    loss_of,
    made,
    sharded,
    train,
    train_alone,
    uneven_model,
)
from multiproc.registry import check
from mydist.optim.sharded import host_memory


@contextmanager
def hosts(ranks_on_each: int) -> Iterator[None]:
    """Ranks take themselves for ranks of several hosts when they look for shared memory."""
    with mock.patch.dict(os.environ, MYDIST_HOST_ID=f"host{md.rank() // ranks_on_each}"):
        yield


def sharing(ranks_on_each: int, stage: int, **options: Any) -> tuple[Any, Any]:
    model = uneven_model()
    with hosts(ranks_on_each):
        return model, sharded(model, stage, share_parameters=True, **options)


@check(cases=itertools.product((1, 2), (2, 9), ("element", "parameter")))
def ranks_with_one_copy_train_what_one_process_trains(
    stage: int, ranks_on_each: int, partition: str
) -> None:
    model, optimizer = sharing(ranks_on_each, stage, partition=partition)
    alone = uneven_model()
    reference = made("AdamW", alone)
    train(model, optimizer, range(3))
    train_alone(alone, reference, range(3))
    expect_same(model, alone)
    expect_equal_parameters(model)
    md.barrier()
    # The ranks of a host see what one of them writes.
    if md.rank() % ranks_on_each == 0:
        with torch.no_grad():
            model.scale.fill_(3 + md.rank())
    md.barrier()
    assert model.scale.item() == 3 + md.rank() // ranks_on_each * ranks_on_each
    md.barrier()


@check(min_size=2)
def one_copy_counts_once() -> None:
    model, optimizer = sharing(9, 2)
    whole = 8 * sum(p.numel() for p in model.parameters())
    assert optimizer.memory().parameters == whole // md.size()
    facts = [fact.reason for fact in md.explain().facts.values()]
    assert any(f"one copy of the parameters for {md.size()} ranks" in fact for fact in facts), facts
    storage = model[0].weight.untyped_storage()
    assert storage.nbytes() == 8 * model[0].weight.numel()  # What torch.save() would write.


@check(min_size=2, cases=BY_STAGE)
def a_copy_in_another_dtype_is_for_each_rank(stage: int) -> None:
    models, optimizers = [], []
    for shares in (True, False):
        model = uneven_model(torch.bfloat16)
        options = {"master_dtype": torch.float32, "share_parameters": shares}
        models.append(model)
        optimizers.append(sharded(model, stage, **options))
        train(model, optimizers[-1], range(3))
        md.barrier()
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


@check(min_size=2)
def a_parameter_with_other_memory_is_an_error() -> None:
    model, optimizer = sharing(9, 1)
    train(model, optimizer, range(1))
    model[0].weight.data = model[0].weight.data.clone()
    loss_of(model, md.rank()).backward()
    raises(optimizer.step, "parameter '0.weight' has been given other memory", "copy_")
    optimizer._distribution.reset()


@check(min_size=2)
def an_error_in_the_update_leaves_ranks_equal() -> None:
    model, optimizer = sharing(2, 1)
    train(model, optimizer, range(1))
    loss_of(model, md.rank()).backward()
    eps = optimizer.param_groups[0]["eps"]
    optimizer.param_groups[0]["eps"] = "wrong" if md.rank() == 0 else eps
    if md.rank() == 0:
        raises(optimizer.step, "", kind=TypeError)
    else:
        raises(optimizer.step, "rank 0 could not update", "in part", kind=md.MydistError)
    optimizer.param_groups[0]["eps"] = eps
    expect_equal_parameters(model)


@check(min_size=2, cases=[("full",), ("unseen",)])
def ranks_without_shared_memory_keep_their_own(how: str) -> None:
    opened, paths = host_memory._opened, []

    def fails(path: str, size: int, flags: int = 0) -> Any:
        paths.append(path)
        if how == "full" and flags:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path if flags else path + ".unseen", size, flags)

    reason = "No space left" if how == "full" else "a rank cannot open it"
    with (
        mock.patch.object(host_memory, "_opened", fails),
        warnings.catch_warnings(record=True) as w,
    ):
        warnings.simplefilter("always")
        model, optimizer = sharing(9, 2)
    (text,) = [str(one.message) for one in w if "share_parameters" in str(one.message)]
    assert reason in text and "keeps its own copy" in text, text
    train(model, optimizer, range(2))
    train_alone(alone := uneven_model(), made("AdamW", alone), range(2))
    expect_same(model, alone)
    assert not any(map(os.path.exists, paths)), paths
