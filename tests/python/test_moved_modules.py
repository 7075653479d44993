"""Public module paths that were given to users go on working after their modules have moved."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest

import mydist as md
from mydist import errors
from mydist._moved_modules import MOVED, MovedModules

RunPython = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def moved_path(monkeypatch: pytest.MonkeyPatch) -> str:
    """An earlier path of mydist.errors."""
    path = "mydist.earlier_errors"
    monkeypatch.setattr(sys, "meta_path", [MovedModules({path: "mydist.errors"}), *sys.meta_path])
    monkeypatch.delitem(sys.modules, path, raising=False)
    return path


def test_an_earlier_path_gives_the_very_module(moved_path: str) -> None:
    assert importlib.import_module(moved_path) is errors
    assert errors.__name__ == "mydist.errors"
    assert errors.__spec__ is not None and errors.__spec__.name == "mydist.errors"


def test_a_pickle_that_names_an_earlier_path_loads(moved_path: str) -> None:
    assert pickle.loads(f"c{moved_path}\nMydistError\n.".encode()) is errors.MydistError


def test_other_paths_are_not_found(moved_path: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"mydist\.no_such_module"):
        importlib.import_module("mydist.no_such_module")


COLLECTIVES = """
    allgather allgather_async allreduce allreduce_ allreduce_async allreduce_async_ alltoall
    alltoall_async barrier broadcast broadcast_ broadcast_async broadcast_async_ gather gather_async
    grouped_allgather grouped_allgather_async grouped_allreduce grouped_allreduce_
    grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter
    grouped_reducescatter_async join poll recv recv_async reduce reduce_async reducescatter
    reducescatter_async scatter scatter_async send send_async synchronize
"""
# Each module path that was given to users, and the public names of that module.
GIVEN = {
    "checkpoint": "Checkpoint",
    "collectives": COLLECTIVES,
    "compression": "Compression Compressor",
    "consistency": "check_consistency",
    "errors": """
        AbortedError CollectiveTimeoutError HorovodInternalError MismatchError MydistError
        PeerLostError VersionMismatchError
    """,
    "learning_rate": "WarmupLR scale_lr",
    "loader": "prepare_loader",
    "main_rank": "main_rank_first",
    "metrics": "Metrics",
    "objects": "allgather_object broadcast_object",
    "optimizer": "DistributedOptimizer",
    "process_set": "ProcessSet add_process_set global_process_set remove_process_set",
    "progress_bar": "progress",
    "rank_logger": "get_logger",
    "reduce_op": "Adasum Average Max Min Product ReduceOp Sum",
    "sampler": "DistributedSampler",
    "seed": "seed_everything",
    "state": "broadcast_optimizer_state broadcast_parameters",
    "sync_batch_norm": "SyncBatchNorm convert_sync_batchnorm",
}


@pytest.mark.parametrize("path", GIVEN)
def test_each_path_gives_the_public_objects(path: str) -> None:
    module = importlib.import_module(f"mydist.{path}")
    for name in GIVEN[path].split():
        assert getattr(module, name) is getattr(md, name)
    assert getattr(md, path) is module


def test_the_path_of_the_consistency_check_gives_what_the_optimizer_uses() -> None:
    earlier = importlib.import_module("mydist.consistency")
    now = importlib.import_module("mydist.optim.consistency")
    assert earlier.ConsistencyCheck is now.ConsistencyCheck
    assert earlier.check_interval is now.check_interval


def test_no_moved_path_is_left_out() -> None:
    assert {path.removeprefix("mydist.") for path in MOVED} <= set(GIVEN)


@pytest.mark.parametrize("name", ["global_process_set", "ProcessSet"])
def test_a_pickle_of_process_sets_loads(name: str) -> None:
    value = getattr(md, name)
    assert pickle.loads(f"cmydist.process_set\n{name}\n.".encode()) is value
    assert pickle.loads(pickle.dumps(value)) is value


def test_each_path_works_in_import_statements(run_python: RunPython) -> None:
    lines = []
    for path in GIVEN:
        lines += [f"import mydist.{path}", f"from mydist import {path}"]
        lines += [f"assert {path} is mydist.{path}", f"{path}.{GIVEN[path].split()[0]}"]
    done = run_python("\n".join([*lines, "print('all')"]))
    assert done.stdout.strip() == "all", done.stderr
