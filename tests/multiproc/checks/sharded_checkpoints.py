"""Checkpoint(sharded=True): every rank writes its slices, and any job puts its own together."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import raises
from multiproc.checks.sharded import (
    BY_STAGE,
    expect_same,
    made,
    sharded,
    train,
    train_alone,
    uneven_model,
)
from multiproc.registry import check


@contextmanager
def shared_folder() -> Iterator[Path]:
    folder = md.broadcast_object(tempfile.mkdtemp() if md.rank() == 0 else None, 0)
    yield Path(folder)
    md.barrier()
    if md.rank() == 0:
        shutil.rmtree(folder)


def opened(folder: Path, model: Any, optimizer: Any, **options: Any) -> md.Checkpoint:
    """Restores what is there."""
    return md.Checkpoint(folder, model=model, optimizer=optimizer, on_sigterm=False, **options)


def saved(folder: Path, stage: int = 2) -> tuple[Any, Any]:
    """Two steps, and a checkpoint of them."""
    model = uneven_model()
    optimizer = sharded(model, stage)
    checkpoint = opened(folder, model, optimizer, sharded=True)
    train(model, optimizer, range(2))
    checkpoint.save(2)
    return model, optimizer


@check(cases=BY_STAGE)
def another_stage_and_one_process_go_on(stage: int) -> None:
    with shared_folder() as folder:
        model, optimizer = saved(folder, stage)
        files = sorted(path.name for path in folder.glob("step-000000002.shards.*/*"))
        assert files == sorted(f"rank-{rank}.pt" for rank in range(md.size()))
        md.barrier()
        train(model, optimizer, range(2, 5))
        other = uneven_model()
        again = sharded(other, 3 - stage)
        assert opened(folder, other, again).step == 2
        train(other, again, range(2, 5))
        assert all(map(torch.equal, model.parameters(), other.parameters()))
        alone = uneven_model()
        plain = made("AdamW", alone)
        opened(folder, alone, plain)
        train_alone(alone, plain, range(2, 5))
        expect_same(model, alone)


@check(min_size=2)
def fewer_ranks_go_on() -> None:
    with shared_folder() as folder:
        model, optimizer = saved(folder)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        whole = md.gather_state(optimizer)
        fewer = md.add_process_set(list(range(md.size() - 1)))
        if md.rank() in fewer.ranks:
            other = uneven_model()
            again = sharded(other, 1, process_set=fewer)
            opened(folder, other, again, process_set=fewer)
            for name, p in other.named_parameters():
                assert torch.equal(p, before[name])
            gathered = md.gather_state(again)
            if whole is not None:
                assert gathered is not None and gathered["state"].keys() == whole["state"].keys()
                for index, values in whole["state"].items():
                    for key, value in values.items():
                        assert torch.equal(value, gathered["state"][index][key]), key
        md.barrier()
        md.remove_process_set(fewer)


@check()
def frozen_parameters_are_saved_and_have_no_state() -> None:
    def frozen() -> tuple[Any, Any]:
        model = uneven_model()
        model[0].requires_grad_(False)
        return model, sharded(model, 2)

    with shared_folder() as folder:
        model, optimizer = frozen()
        with torch.no_grad():
            model[0].weight.fill_(0.5)
        checkpoint = opened(folder, model, optimizer, sharded=True)
        train(model, optimizer, range(2))
        checkpoint.save(2)
        other, again = frozen()
        assert opened(folder, other, again).step == 2
        assert all(map(torch.equal, model.parameters(), other.parameters()))
        assert other[0].weight not in again.state
        train(model, optimizer, range(2, 4))
        train(other, again, range(2, 4))
        assert all(map(torch.equal, model.parameters(), other.parameters()))


@check()
def what_a_killed_save_left_does_not_count() -> None:
    with shared_folder() as folder:
        model, optimizer = saved(folder)
        checkpoint = opened(folder, model, optimizer, sharded=True)
        train(model, optimizer, range(2, 4))
        # All ranks have written, and the job dies before rank 0 has written the checkpoint.
        checkpoint._sharded_states.collect(folder / "step-000000004.pt")
        other = uneven_model()
        again = sharded(other, 2)
        assert opened(folder, other, again).step == 2
        train(other, again, range(2, 4))
        assert all(map(torch.equal, model.parameters(), other.parameters()))
        checkpoint.save(5)
        md.barrier()
        left = sorted(path.name.partition(".")[0] for path in folder.glob("*.shards.*"))
        assert left == ["step-000000002", "step-000000005"], left


@check()
def a_damaged_or_missing_file_is_an_error_on_every_rank() -> None:
    with shared_folder() as folder:
        model, optimizer = saved(folder)
        (file,) = folder.glob(f"*.shards.*/rank-{md.size() - 1}.pt")
        md.barrier()
        if md.rank() == 0:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
        md.barrier()
        raises(lambda: opened(folder, model, optimizer), file.name, "damaged")
        md.barrier()
        if md.rank() == 0:
            os.unlink(file)
        md.barrier()
        raises(lambda: opened(folder, model, optimizer), file.name, "is missing")


@check()
def other_parameters_are_listed() -> None:
    with shared_folder() as folder:
        model, optimizer = saved(folder)
        optimizer._distribution.names._given = {
            id(p): f"new.{name}" if "2." in name else name for name, p in model.named_parameters()
        }
        raises(
            lambda: opened(folder, model, optimizer),
            "'2.weight' is not in the model",
            "'new.2.weight' is not in the checkpoint",
        )
        plain = torch.optim.AdamW(model[0].parameters())
        raises(lambda: opened(folder, model, plain), "'2.weight' is not in the model")
