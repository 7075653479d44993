"""Checkpoint: saves training state from rank 0 and restores it on all ranks.

checkpoint = md.Checkpoint("runs/a", keep=3, model=model, optimizer=optimizer)
for step in range(checkpoint.step, total_steps):
    ...
    if (step + 1) % 1000 == 0:
        checkpoint.save(step + 1)
    if checkpoint.should_stop(step + 1):
        break
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..collectives import allreduce
from ..collectives.arguments import check_process_set
from ..collectives.objects import allgather_object, broadcast_object
from ..errors import MismatchError, MydistError
from ..job import topology
from ..job.error_text import check_whole, difference_text, wrong_type
from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import Max
from .checkpoint_file import (
    AUTO,
    FORMAT,
    VERSION,
    FoundCheckpoint,
    checkpoint_path,
    find_checkpoint,
    load_checkpoint,
    remove_old_checkpoints,
    shared_bytes,
    shared_content,
    write_checkpoint,
)
from .rank_states import RankStates
from .sharded_states import ShardedStates, is_in_files
from .stop_signal import StopSignal

__all__ = ["Checkpoint"]

_RESUME = "'auto', the path of a file or folder, or None"


class Checkpoint:
    """Training state in a folder: saved atomically, restored on every rank.

    A checkpoint holds the `state_dict()` of each object given, as rank 0 has it, the random
    generators of every rank, the step, and extras. Of an optimizer whose steps stay local it holds
    the state of every rank, see docs/strategies.md; of a sharded optimizer the whole state, which a
    job of any size restores. Rank 0 (of the process set) alone reads and writes the folder and
    sends what it read to the others, so no shared disk is needed. Every
    method that says so is collective: all ranks call it at the same point. All calls come from
    the thread that trains.

    Attributes:
        step: that of the checkpoint last restored or saved, 0 if there was none.
        extras: those of the checkpoint last restored.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int | None = 3,
        resume: str | os.PathLike[str] | None = AUTO,
        *,
        on_sigterm: bool = True,
        sharded: bool = False,
        process_set: ProcessSet = global_process_set,
        **objects: Any,
    ) -> None:
        """Restores, unless `resume` is None, and starts to watch for SIGTERM. Collective.

        Args:
            directory: made by rank 0 with the first save. One job at a time may use it.
            keep: how many of the newest checkpoints are kept, at least 1; None keeps all.
            resume: see `restore`; None starts afresh.
            on_sigterm: SIGTERM no longer ends the process; it makes `should_stop()` true. The
                handler that was installed before runs as well. `close()` restores it.
            sharded: of a sharded optimizer each rank writes its own slices, to a folder that all
                ranks must see. Without it rank 0 gathers and writes the whole state. Either kind is
                restored by a job of any size, with or without it.
            process_set: the ranks that share the checkpoints.
            objects: what to save, by name: model=…, optimizer=…, scheduler=…, sampler=… or any
                other; each with `state_dict()` and `load_state_dict()`. Optimizers may be wrapped.

        Raises:
            TypeError, ValueError: an argument is wrong, mydist is not initialized, or on_sigterm
                outside the main thread.
            Exception: whatever `restore` raises.
        """
        folder = _checked_path("directory", directory, "the path of a folder")
        self._folder = Path(folder).absolute()
        self._keep = _checked_keep(keep)
        check_process_set("Checkpoint", process_set)
        if resume is not None:
            _checked_path("resume", resume, _RESUME)
        self._objects = _checked_objects(objects)
        self._process_set = process_set
        self._rank_states = RankStates(self._objects, process_set)
        self._sharded_states = ShardedStates(self._objects, process_set, bool(sharded))
        self._root_rank = process_set.ranks[0]
        self._stop_requested = False
        self._saved_step: int | None = None
        self.step = 0
        self.extras: dict[str, Any] = {}
        self._signal = StopSignal() if on_sigterm else None
        try:
            self.restore(resume)
        except BaseException:
            self.close()
            raise

    def save(self, step: int, extras: Mapping[str, Any] | None = None) -> Path:
        """Writes a checkpoint; returns when it is safely on rank 0's disk. Collective.

        Older ones than the newest `keep` are removed after that. A file of the same step is
        replaced.

        Args:
            step: how many steps have been made; the same on all ranks.
            extras: further plain values and tensors by name; rank 0's are kept.

        Returns:
            The file.

        Raises:
            TypeError, ValueError: an argument is wrong.
            MismatchError: the ranks are at different steps; nothing was written.
            OSError: rank 0 could not write; on every rank, naming the file.
            TypeError: a state holds what could not be loaded again; on every rank, naming it.
        """
        step = _checked_step(step)
        if extras is not None and not isinstance(extras, Mapping):
            raise TypeError(f"Checkpoint.save: extras is {type(extras).__name__}, expected a dict")
        random_states = self._gather_random_states(step)
        rank_states = self._rank_states.gather()
        path = checkpoint_path(self._folder, step)
        cut_states = self._sharded_states.collect(path)
        failure: Exception | None = None
        if self._is_root():
            try:
                content = self._content(step, extras or {}, random_states, cut_states)
                if rank_states:
                    content["rank_states"] = rank_states
                write_checkpoint(path, content)
                if self._keep is not None:
                    remove_old_checkpoints(self._folder, step, self._keep)
                self._sharded_states.saved(path)
            except Exception as error:  # state_dict() is the user's code
                failure = error
        self._agree(failure, f"saving step {step}")
        self.step = self._saved_step = step
        return path

    def restore(self, resume: str | os.PathLike[str] | None = AUTO) -> int:
        """Loads a checkpoint into the objects, on all ranks alike. Collective.

        Args:
            resume: "auto": the newest one in the folder that is whole; one that is damaged is
                skipped with a warning. A path: that file, or the newest in that folder. None:
                nothing is loaded.

        Returns:
            The step at which it was saved; 0 when there is none. Ranks that the saving job did
            not have keep their random generators as they are. In a job of another size, an
            optimizer whose steps stay local starts from its last round, and codecs have nothing
            left to send, with a warning.

        Raises:
            FileNotFoundError, ValueError: the file or folder named is not there, damaged, no
                checkpoint, or does not hold the state of every object; on every rank.
            MydistError: there are checkpoints, but none of them can be read; on every rank.
        """
        if resume is None:
            return 0
        _checked_path("resume", resume, _RESUME)
        found: FoundCheckpoint | None = None
        failure: Exception | None = None
        if self._is_root():
            try:
                found = find_checkpoint(self._folder, resume)
            except Exception as error:
                failure = error
        self._agree(failure, "restoring")
        content = self._share(found)
        if content is not None:
            self._install(content, found)
        return self.step

    def should_stop(self, step: int | None = None) -> bool:
        """Whether any rank got SIGTERM or `request_stop()`: the same answer everywhere. Collective.

        Costs one reduction of four bytes, so it can be called after every step.

        Args:
            step: if given and the answer is True, this step is saved first (unless it just was).

        Raises: as `save`.
        """
        if step is not None:
            step = _checked_step(step)
        mine = self._stop_requested or (self._signal is not None and self._signal.received)
        stop = allreduce(
            torch.tensor([int(mine)], dtype=torch.int32, device="cpu"),
            op=Max,
            name="checkpoint.should_stop",
            process_set=self._process_set,
        )
        if not int(stop):
            return False
        if step is not None and step != self._saved_step:
            self.save(step)
        return True

    def request_stop(self) -> None:
        """Makes the next `should_stop()` True on all ranks. Not collective; any rank may ask."""
        self._stop_requested = True

    def close(self) -> None:
        """Stops watching for SIGTERM and puts the former handler back. Not collective."""
        if self._signal is not None:
            self._signal.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _is_root(self) -> bool:
        return topology.rank() == self._root_rank

    def _agree(self, cause: Exception | None, doing: str) -> None:
        """Raises rank 0's failure on every rank."""
        failure = broadcast_object(
            _portable(cause, doing) if self._is_root() else None,
            self._root_rank,
            name="checkpoint.outcome",
            process_set=self._process_set,
        )
        if failure is not None:
            raise failure from (cause if cause is not failure else None)

    def _gather_random_states(self, step: int) -> list[Any]:
        """The random states of all ranks, in rank order. Raises MismatchError."""
        entries = allgather_object(
            (topology.rank(), step, _capture_random_state()),
            name="checkpoint.random_states",
            process_set=self._process_set,
        )
        if len({entry[1] for entry in entries}) > 1:
            table = {rank: f"step {of_rank}" for rank, of_rank, _ in entries}
            what = "Checkpoint.save: ranks save different steps"
            raise MismatchError(
                difference_text(what, table, [], "Call save() with the same step on every rank.")
            )
        return [states for _, _, states in entries]

    def _content(
        self,
        step: int,
        extras: Mapping[str, Any],
        random_states: list[Any],
        cut_states: Mapping[str, Any],
    ) -> dict[str, Any]:
        own = {n: v.state_dict() for n, v in self._objects.items() if n not in cut_states}
        return {
            "format": FORMAT,
            "version": VERSION,
            "step": step,
            "objects": {**own, **cut_states},
            "random_states": random_states,
            "extras": dict(extras),
        }

    def _share(self, found: FoundCheckpoint | None) -> dict[str, Any] | None:
        """What rank 0 found, on every rank."""
        sent = broadcast_object(
            found and (str(found.path), shared_bytes(found)),
            self._root_rank,
            name="checkpoint.bytes",
            process_set=self._process_set,
        )
        if sent is None:
            return None
        content = load_checkpoint(sent[1]) if found is None else shared_content(found)
        self._expect_objects(sent[0], content)
        return {**content, "path": sent[0]}

    def _expect_objects(self, path: str, content: Mapping[str, Any]) -> None:
        saved, given = set(content["objects"]), set(self._objects)
        if given - saved:
            raise ValueError(
                f"checkpoint '{path}' has no state of {_quoted(given - saved)}, but only of "
                f"{_quoted(saved)}; give this Checkpoint the objects that were saved, or pass "
                "resume=None to start from scratch"
            )
        if saved - given and self._is_root():
            warnings.warn(
                f"checkpoint '{path}' also has the state of {_quoted(saved - given)}, which this "
                "Checkpoint does not have; it is ignored",
                stacklevel=4,
            )

    def _install(self, content: Mapping[str, Any], found: FoundCheckpoint | None) -> None:
        for name, value in self._objects.items():
            state = content["objects"][name]
            if is_in_files(state):
                self._sharded_states.load(name, value, state, Path(content["path"]))
            else:
                value.load_state_dict(state)
        if self._rank_states:
            self._install_rank_states(content, found)
        elif content.get("rank_state_count") and self._is_root():
            warnings.warn(
                f"checkpoint '{content['path']}' has what each rank keeps for a strategy or a "
                "codec, which this optimizer cannot use; all ranks take the parameters of rank 0. "
                "Save after optimizer.finish() to change the strategy",
                stacklevel=4,
            )
        self.step = self._saved_step = content["step"]
        self.extras = content["extras"]
        # Last: what ran before may have drawn numbers.
        states = content["random_states"]
        index = self._process_set.rank()
        if index < len(states):
            _restore_random_state(states[index])

    def _install_rank_states(
        self, content: Mapping[str, Any], found: FoundCheckpoint | None
    ) -> None:
        saved, size = content.get("rank_state_count", 0), self._process_set.size()
        if saved == size:
            self._rank_states.scatter([] if found is None else found.content["rank_states"])
        elif saved:
            lost = self._rank_states.drop()
            if lost and self._is_root():
                warnings.warn(
                    f"checkpoint '{content['path']}' was saved by {saved} ranks and is restored by "
                    f"{size}. {'. '.join(lost)}",
                    stacklevel=4,
                )


def _portable(failure: Exception | None, doing: str) -> Exception | None:
    """The failure as the other ranks can have it: exceptions of users may not be picklable."""
    if failure is None or type(failure).__module__ in ("builtins", MydistError.__module__):
        return failure
    return MydistError(f"checkpoint: {doing} failed: {type(failure).__name__}: {failure}")


def _quoted(names: set[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "nothing"


def _checked_path(argument: str, value: object, expected: str) -> str:
    if not isinstance(value, (str, os.PathLike)) or isinstance(value, bytes):
        raise wrong_type(f"Checkpoint: {argument}", value, "a str or path")
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(f"Checkpoint: {argument} is {path!r}, expected {expected}")
    return path


def _checked_keep(keep: int | None) -> int | None:
    if keep is None:
        return None
    if check_whole("Checkpoint: keep", keep, "an int or None to keep all") < 1:
        raise ValueError(f"Checkpoint: keep is {keep}, expected at least 1, or None to keep all")
    return keep


def _checked_step(step: int) -> int:
    if not 0 <= check_whole("Checkpoint: step", step) < 2**63:
        raise ValueError(f"Checkpoint: step is {step}, expected the number of steps made so far")
    return step


def _checked_objects(objects: Mapping[str, Any]) -> dict[str, Any]:
    if not objects:
        raise ValueError(
            "Checkpoint: got nothing to save; pass model=…, optimizer=… or other objects with "
            "state_dict() by name"
        )
    for name, value in objects.items():
        for method in ("state_dict", "load_state_dict"):
            if isinstance(value, type) or not callable(getattr(value, method, None)):
                raise TypeError(
                    f"Checkpoint: {name} is {type(value).__name__}, which has no {method}(); "
                    "save plain values with save(step, extras={…})"
                )
    return dict(objects)


def _capture_random_state() -> dict[str, Any]:
    """The states of the random generators of this process, which torch.save can hold.

    Python's, torch's on the CPU, numpy's global one once numpy is loaded, and torch's of the
    current CUDA device once CUDA is in use: numbers, texts, tuples, lists and uint8 tensors.
    """
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        states["numpy"] = _plain(_numpy_random().get_state(legacy=False))
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random_state(states: Mapping[str, Any]) -> None:
    """Puts back what `_capture_random_state` gave. A generator that is not there is left out."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        with contextlib.suppress(ImportError):  # Without numpy nothing draws from it.
            _numpy_random().set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _numpy_random() -> Any:
    # Any, so that mydist can be type-checked without numpy.
    return importlib.import_module("numpy.random")


def _plain(value: Any) -> Any:
    """Arrays become lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value
