"""DistributedSampler: which samples of a dataset each rank sees, exactly and resumably."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any, Literal

import torch
from torch.utils.data import Sampler

from ..collectives.arguments import check_process_set
from ..job.error_text import check_state, check_whole
from ..job.process_set import ProcessSet, global_process_set

__all__ = ["DistributedSampler"]

Tail = Literal["pad", "drop", "join"]
_TAILS = ("pad", "drop", "join")
# Runs as pasted, where `dataset` can only be iterated.
HOW_TO_SHARE = """. Split an iterable dataset over ranks and workers like this:

    import itertools, mydist, torch

    class Shared(torch.utils.data.IterableDataset):
        def __init__(self, dataset):
            self.dataset = dataset

        def __iter__(self):
            info = torch.utils.data.get_worker_info()
            worker, workers = (info.id, info.num_workers) if info else (0, 1)
            first, step = mydist.rank() * workers + worker, mydist.size() * workers
            return itertools.islice(self.dataset, first, None, step)

    loader = torch.utils.data.DataLoader(Shared(dataset))
"""
_STATE_KEYS = ("epoch", "consumed", "length", "seed", "shuffle")


class DistributedSampler(Sampler[int]):
    """Deals the samples of every epoch out to the ranks: rank r gets numbers r, r + size, ….

    With shuffle the order of an epoch is `torch.randperm(length)` of a generator seeded with
    `seed + epoch`, as in torch's sampler of the same name, and so the same on all ranks. It does
    not depend on their number, so an epoch can be resumed with more or fewer ranks.
    `prepare_loader` makes a DataLoader with one of these that counts epochs itself.

    Args:
        dataset: anything with a length, or the length.
        shuffle: a new order every epoch; otherwise the dataset's.
        seed: equal on all ranks, from 0 to 2**62.
        tail: what happens when the length is no multiple of the number of ranks. "pad": the first
            samples of the epoch are repeated, all ranks get equally many. "drop": the last ones are
            left out, all get equally many. "join": every sample once, some ranks get one more; a
            rank that has finished calls `mydist.join()` after its loop.
        process_set: the ranks that share the dataset.

    Raises:
        ValueError: no samples, fewer than ranks with "drop", an unknown tail, `process_set` has not
            been added or this rank is not in it, or before mydist.init().
        TypeError: an argument has the wrong type.
    """

    def __init__(
        self,
        dataset: Sized | int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        tail: Tail = "pad",
        process_set: ProcessSet = global_process_set,
    ) -> None:
        check_process_set("DistributedSampler", process_set)
        self.length = _length_of(dataset)
        self.shuffle = bool(shuffle)
        self.seed = _check_number("seed", seed, 2**62)
        self.tail = _check_tail(tail, self.length, process_set.size())
        self.process_set = process_set
        self.epoch = 0
        # Samples of the epoch that all ranks together had done when this iteration began, …
        self._start = 0
        # … and what this rank has got since.
        self._given = 0
        self._begun = False
        # Set by a loader, which knows what arrived; this class only sees what is fetched ahead.
        self._counts_itself = True

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its beginning.

        After load_state_dict() the epoch that was loaded goes on where it was. Call it alike on all
        ranks. Raises TypeError or ValueError when `epoch` is no int from 0 on.
        """
        epoch = _check_number("epoch", epoch, 2**62)
        if epoch != self.epoch or self._begun:
            self.epoch, self._start, self._given, self._begun = epoch, 0, 0, False

    def __iter__(self) -> Iterator[int]:
        # A DataLoader may make an iterator that it never uses, so nothing happens before next().
        if self._begun:
            self._start = 0
        self._given, self._begun = 0, True
        for index in self._indices():
            if self._counts_itself:
                self._given += 1
            yield index

    def __len__(self) -> int:
        """How many samples this rank gets in the iteration that is running or comes next."""
        remaining, ranks = self.length - self._start, self.process_set.size()
        if self.tail == "pad":
            return -(-remaining // ranks)
        if self.tail == "drop":
            return remaining // ranks
        return max(0, -(-(remaining - self.process_set.rank()) // ranks))

    def state_dict(self) -> dict[str, int | bool]:
        """The place in the epoch: the same on all ranks while they have taken equally many samples.

        A plain DataLoader with workers fetches ahead of the training loop and this counts what was
        fetched; the state of a loader from `prepare_loader` is exact.
        """
        consumed = self._start + self._given * self.process_set.size()
        values = (self.epoch, min(consumed, self.length), self.length, self.seed, self.shuffle)
        return dict(zip(_STATE_KEYS, values, strict=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where `state` was taken, on as many ranks as there are now.

        Of the samples seen by then none comes again, but for those that "pad" repeats. Raises
        ValueError when the state is of another dataset length, seed or shuffle.
        """
        check_state("DistributedSampler", state, _STATE_KEYS)
        for key in ("length", "seed", "shuffle"):
            if state[key] != getattr(self, key):
                raise ValueError(
                    f"DistributedSampler.load_state_dict: the state was taken with {key} "
                    f"{state[key]}, but this sampler has {getattr(self, key)}, so its order "
                    "differs; make the sampler with the same dataset, seed and shuffle"
                )
        self.epoch = _check_number("epoch", state["epoch"], 2**62)
        self._start = _check_number("consumed", state["consumed"], self.length)
        self._given, self._begun = 0, False
        ranks = self.process_set.size()
        left = self.length - self._start
        if left == 0 or (self.tail == "drop" and left < ranks):
            self.epoch, self._start = self.epoch + 1, 0

    def _indices(self) -> list[int]:
        """This rank's samples of the epoch, from `_start` on."""
        ranks = self.process_set.size()
        first = self._start + self.process_set.rank()
        end = first + len(self) * ranks
        places = torch.arange(first, end, ranks, dtype=torch.int64, device="cpu") % self.length
        if not self.shuffle:
            return places.tolist()
        generator = torch.Generator("cpu").manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator, dtype=torch.int64, device="cpu")
        return order[places].tolist()


def _length_of(dataset: Any) -> int:
    if isinstance(dataset, Sized):
        length = len(dataset)
    elif isinstance(dataset, int) and not isinstance(dataset, bool):
        length = dataset
    else:
        raise TypeError(
            f"DistributedSampler: dataset is {type(dataset).__qualname__}, expected a dataset with "
            f"a length, or the length{HOW_TO_SHARE}"
        )
    if length <= 0:
        raise ValueError(
            f"DistributedSampler: the dataset has {length} samples, expected at least one"
        )
    return length


def _check_tail(tail: Any, length: int, ranks: int) -> Tail:
    if tail not in _TAILS:
        raise ValueError(
            f"DistributedSampler: tail is {tail!r}, expected 'pad' (repeat some samples), 'drop' "
            "(leave some out) or 'join' (uneven, then mydist.join())"
        )
    if tail == "drop" and length < ranks:
        raise ValueError(
            f"DistributedSampler: tail='drop' leaves nothing of {length} samples for {ranks} "
            "ranks; use tail='pad' or 'join', or fewer ranks"
        )
    checked: Tail = tail
    return checked


def _check_number(argument: str, value: Any, limit: int) -> int:
    what = f"DistributedSampler: {argument}"
    if not 0 <= check_whole(what, value) <= limit:
        raise ValueError(f"{what} is {value}, expected a number from 0 to {limit}")
    return int(value)
