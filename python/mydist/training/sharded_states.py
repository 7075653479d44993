"""ShardedStates: the states of which each rank has a slice, saved and restored by all ranks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..collectives.objects import allgather_object, broadcast_object
from ..job.process_set import ProcessSet
from ..optim.sharded.ranges import load_ranges, own_ranges, plan_of
from ..optim.sharded.sharded_state import gather_state
from .shard_files import expect_whole, read_shards, remove_unused_shards, shard_folder, write_shard

# An object of a checkpoint whose state is in the files of the ranks.
KIND = "mydist.slices"


class ShardedStates:
    """Those of a checkpoint's objects, for the ranks of a process set."""

    def __init__(self, objects: Mapping[str, Any], process_set: ProcessSet, in_files: bool) -> None:
        """in_files: each rank writes its slices. Else rank 0 gathers them."""
        self._objects = {n: v for n, v in objects.items() if getattr(v, "_cuts_state", False)}
        self._process_set = process_set
        self._root_rank = process_set.ranks[0]
        self._in_files = in_files
        self._folder: Path | None = None  # Of the save that goes on.

    def collect(self, checkpoint: Path) -> dict[str, Any]:
        """By name, what the checkpoint has of each, on the root. Collective.

        Raises on every rank what went wrong on one.
        """
        if not self._objects:
            return {}
        if not self._in_files:
            return {n: gather_state(v, self._root_rank) for n, v in self._objects.items()}
        token = broadcast_object(
            secrets.token_hex(4), self._root_rank, "checkpoint.shards", self._process_set
        )
        folder = self._folder = shard_folder(checkpoint, token)
        ranges = {name: own_ranges(value) for name, value in self._objects.items()}
        self._together(lambda: write_shard(folder, self._process_set.rank(), ranges))
        size = self._process_set.size()
        return {
            name: {"kind": KIND, "folder": folder.name, "size": size, **plan_of(value)}
            for name, value in self._objects.items()
        }

    def saved(self, checkpoint: Path) -> None:
        """The checkpoint has been written: what it replaces can go. On the root."""
        if self._folder is not None:
            remove_unused_shards(checkpoint, self._folder)

    def load(self, name: str, value: Any, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Gives an object, sharded or not, its part of the files. Collective.

        Raises ValueError on every rank.
        """
        folder = checkpoint.with_name(state["folder"])

        def read() -> None:
            rank, size = self._process_set.rank(), self._process_set.size()
            for saved in range(rank, state["size"], size):  # Each file is checked by one rank.
                expect_whole(folder, saved)

        def install() -> None:
            shards = read_shards(folder, state["size"])
            load_ranges(value, state, [shard[name] for shard in shards])

        self._together(read)
        self._together(install)

    def _together(self, act: Callable[[], None]) -> None:
        """Does it on all ranks; raises the first failure on all of them."""
        failure: Exception | None = None
        try:
            act()
        except (OSError, ValueError) as error:
            failure = error
        failures = allgather_object(failure, "checkpoint.shards.outcome", self._process_set)
        first = next((f for f in failures if f is not None), None)
        if first is not None:
            raise first from (failure if failure is not first else None)


def is_in_files(state: Any) -> bool:
    """Whether this state of an object is in the files of the ranks."""
    return isinstance(state, Mapping) and state.get("kind") == KIND
