"""torch.distributed.checkpoint saves and loads the slices of a sharded optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import mydist as md
from multiproc.checks.models import raises
from multiproc.checks.sharded import made, sharded, train, uneven_model
from multiproc.checks.sharded_checkpoints import shared_folder
from multiproc.registry import NotHereError, check
from mydist import _C, c10d


@contextmanager
def folder_and_group(backend: str) -> Iterator[Path]:
    """A folder for all ranks, and torch's process group over this backend."""
    if _C.backend_name() == "mpi":
        raise NotHereError("MPI cannot end in order when torch keeps a group")
    c10d.register()  # The package may not be installed.
    with shared_folder() as folder:
        if backend == "mydist":
            dist.init_process_group("mydist", init_method="mydist://")
        else:
            store = f"file://{folder}/store"
            dist.init_process_group(backend, store, rank=md.rank(), world_size=md.size())
        try:
            yield folder
        finally:
            dist.destroy_process_group()


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    return {"model": model.state_dict(), "optim": optimizer.state_dict()}


def load(folder: Path, stage: int, name: str, **options: Any) -> tuple[Any, Any]:
    """A new model and optimizer with what was saved. Options of `dcp.load`, and process_set."""
    model = uneven_model()
    with torch.no_grad():
        model[0].weight.zero_()
    process_set = options.pop("process_set", md.global_process_set)
    optimizer = sharded(model, stage, name, process_set=process_set)
    optimizer.param_groups[0]["lr"] = 9.0
    before = [p.detach().clone() for p in model.parameters()]
    md.prepare_state(optimizer)
    assert all(map(torch.equal, before, model.parameters()))
    state = state_of(model, optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        dcp.load(state, checkpoint_id=folder / "saved", **options)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optim"])
    return model, optimizer


def expect_same_state(whole: Any, optimizer: Any) -> None:
    gathered = md.gather_state(optimizer)
    if whole is None:
        return
    assert gathered is not None and gathered["param_groups"] == whole["param_groups"]
    for index, values in whole["state"].items():
        for key, value in values.items():
            # A parameter without elements gets no state.
            if isinstance(value, torch.Tensor) and value.numel():
                assert torch.equal(value, gathered["state"][index][key]), (index, key)


@check(
    min_size=3,
    cases=[("mydist", "AdamW"), ("gloo", "AdamW"), ("mydist", "SGD"), ("mydist", "ASGD")],
)
def more_and_fewer_ranks_load_what_some_have_saved(backend: str, name: str) -> None:
    with folder_and_group(backend) as folder:
        most = list(range(md.size() - 1))
        sets = [md.add_process_set(most), md.add_process_set([0])]
        group = dist.new_group(most)
        whole: Any = None
        if md.rank() in most:
            model = uneven_model()
            optimizer = sharded(model, 2, name, process_set=sets[0])
            train(model, optimizer, range(2))
            whole = md.gather_state(optimizer)
            saved = state_of(model, optimizer)
            dcp.save(saved, checkpoint_id=folder / "saved", process_group=group)
        md.barrier()
        other, again = load(folder, 1, name)
        expect_same_state(whole, again)
        if md.rank() in most:
            assert all(map(torch.equal, model.parameters(), other.parameters()))
        if md.rank() == 0:
            alone = load(folder, 2, name, process_set=sets[1], no_dist=True)
            expect_same_state(whole, alone[1])
        md.barrier()
        for some in sets:
            md.remove_process_set(some)


@check()
def the_same_ranks_go_on_from_a_save_in_the_background() -> None:
    with folder_and_group("gloo") as folder:
        model = uneven_model()
        optimizer = sharded(model, 2)
        train(model, optimizer, range(2))
        state = state_of(model, optimizer)
        writing = dcp.async_save(state, checkpoint_id=folder / "saved")
        train(model, optimizer, range(2, 4))  # It has a copy.
        writing.result()
        md.barrier()
        other, again = load(folder, 2, "AdamW")
        train(other, again, range(2, 4))
        assert all(map(torch.equal, model.parameters(), other.parameters()))


@check()
def copies_of_the_slices_are_saved() -> None:
    def build(stage: int) -> tuple[Any, Any]:
        model = uneven_model(torch.bfloat16)
        return model, sharded(model, stage, master_dtype=torch.float32)

    with folder_and_group("mydist") as folder:
        model, optimizer = build(1)
        train(model, optimizer, range(2))
        dcp.save(state_of(model, optimizer), checkpoint_id=folder / "saved")
        other, again = build(2)
        md.prepare_state(again)
        state = state_of(other, again)
        dcp.load(state, checkpoint_id=folder / "saved")
        other.load_state_dict(state["model"])
        again.load_state_dict(state["optim"])
        train(model, optimizer, range(2, 5))
        train(other, again, range(2, 5))
        assert all(map(torch.equal, model.parameters(), other.parameters()))


@check()
def other_parameters_are_an_error_that_names_them() -> None:
    with folder_and_group("mydist") as folder:
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
        optimizer = md.ShardedOptimizer(made("AdamW", model), model.named_parameters())
        md.prepare_state(optimizer)
        state = {"optim": optimizer.state_dict()}
        dcp.save(state, checkpoint_id=folder / "saved")
        turned = md.ShardedOptimizer(
            torch.optim.AdamW([*model.b.parameters(), *model.a.parameters()]),
            model.named_parameters(),
        )
        md.prepare_state(turned)
        state = {"optim": turned.state_dict()}
        own = bool(state["optim"]["shards"])
        dcp.load(state, checkpoint_id=folder / "saved")
        if own:
            raises(
                lambda: turned.load_state_dict(state["optim"]),
                "here; the optimizer must have the same",
            )
