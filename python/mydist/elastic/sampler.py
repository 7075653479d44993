"""ElasticSampler: deals what is left of an epoch out to the ranks there are now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple

import torch
from torch.utils.data import Sampler

from ..collectives.objects import allgather_object
from ..job.error_text import check_state, check_whole
from ..job.topology import rank, size

__all__ = ["ElasticSampler"]

_STATE_KEYS = ("epoch", "consumed", "indices", "length", "seed", "shuffle")


class _Deal(NamedTuple):
    """What one iteration gives to the ranks: places of the epoch's order, in turn.

    `places` is None when these are all from `start` on.
    """

    start: int
    total: int
    places: torch.Tensor | None
    order: torch.Tensor
    rank: int
    ranks: int

    @property
    def per_rank(self) -> int:
        """How many samples each rank gets; the last ones may be repeated ones."""
        return -(-self.total // self.ranks)

    def place(self, number: int) -> int:
        """Where the sample of this number in the deal stands in the order of the epoch."""
        return self.start + number if self.places is None else int(self.places[number])

    def indices(self) -> torch.Tensor:
        """The samples of this rank, shape (per_rank,)."""
        if not self.total:
            return self.order[:0]
        numbers = torch.arange(self.rank, self.per_rank * self.ranks, self.ranks) % self.total
        return self.order[self.start + numbers if self.places is None else self.places[numbers]]


class ElasticSampler(Sampler[int]):
    """Gives each rank its share of what is left of an epoch, also when ranks come or go.

    The order of an epoch is `torch.randperm` of `seed + epoch` with `shuffle`, else that of the
    dataset. It is the same on all ranks and does not depend on their number. Sample k of what is
    left goes to rank k modulo size().

    Put it into a `TorchState`, and call `record_batch` after each step: all ranks take equally many
    samples between two commits. So each rank knows what all have done, and the progress of a rank
    that dies is not lost: what was recorded before the last commit is not dealt out again, and what
    was recorded after it is.

    All ranks get equally many samples. If what is left is no multiple of their number, the last
    ones come a second time in this epoch; these are at most size() - 1.

    Args:
        dataset: anything with a length.
        shuffle: a new order every epoch.
        seed: equal on all ranks.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.length = len(dataset)
        self.shuffle = bool(shuffle)
        self.seed = check_whole("ElasticSampler: seed", seed)
        self.epoch = 0
        self._start = 0  # So many first places of the order were done when the deal was made.
        self._done = 0  # Samples of this deal that each rank has recorded.
        self._singles: set[int] = set()  # Samples behind these that were recorded one by one.
        self._deal: _Deal | None = None

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its beginning; the present one goes on instead."""
        epoch = check_whole("ElasticSampler: epoch", epoch)
        if epoch != self.epoch:
            self.epoch, self._start, self._done, self._deal = epoch, 0, 0, None
            self._singles.clear()

    def __iter__(self) -> Iterator[int]:
        self._start, self._done = self.consumed, 0
        self._deal = self._make_deal()
        return iter(self._deal.indices().tolist())

    def __len__(self) -> int:
        """How many samples each rank gets in the next iteration. ValueError before init()."""
        left = self.length - self.consumed - len(self._singles_left())
        return -(-left // size())

    @property
    def consumed(self) -> int:
        """So many first places of the epoch's order are done on all ranks."""
        if self._deal is None or not self._done:
            return self._start
        numbers = min(self._done * self._deal.ranks, self._deal.total)
        return self._deal.place(numbers - 1) + 1 if numbers else self._start

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Batch number `batch_idx`, from 0, of this iteration is done, on all ranks.

        Raises ValueError before the first iteration of the epoch.
        """
        if self._deal is None:
            raise ValueError("record_batch: no iteration of this epoch has begun; iterate first")
        done = (check_whole("batch_idx", batch_idx) + 1) * check_whole("batch_size", batch_size)
        self._done = max(self._done, min(done, self._deal.per_rank))

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of that batch on this rank. ValueError as `record_batch`."""
        if self._deal is None:
            raise ValueError("get_indices: no iteration of this epoch has begun; iterate first")
        first = batch_idx * batch_size
        found: list[int] = self._deal.indices()[first : first + batch_size].tolist()
        return found

    def record_indices(self, indices: Iterable[int]) -> None:
        """These samples are done on this rank, in whatever order.

        Only this rank knows: if it dies before the next sync, they are dealt out again.
        """
        self._singles.update(int(index) for index in indices)

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch."""
        return {
            "epoch": self.epoch,
            "consumed": self.consumed,
            "indices": sorted(self._singles_left()),
            "length": self.length,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on there, on as many ranks as there are then.

        Raises ValueError when the state is of another dataset length, seed or shuffle.
        """
        check_state("ElasticSampler", state, _STATE_KEYS)
        for key in ("length", "seed", "shuffle"):
            if state[key] != getattr(self, key):
                raise ValueError(
                    f"ElasticSampler.load_state_dict: the state was taken with {key} {state[key]}, "
                    f"but this sampler has {getattr(self, key)}; make it with the same dataset, "
                    "seed and shuffle"
                )
        self.epoch, self._start = int(state["epoch"]), int(state["consumed"])
        self._done, self._deal = 0, None
        self._singles = set(state["indices"])

    def merge(self) -> None:
        """Takes over what other ranks have recorded one by one in this epoch. Collective."""
        for epoch, singles in allgather_object((self.epoch, sorted(self._singles))):
            if epoch == self.epoch:
                self._singles.update(singles)

    def _order(self) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.length)
        generator = torch.Generator("cpu").manual_seed(self.seed + self.epoch)
        return torch.randperm(self.length, generator=generator, device="cpu")

    def _singles_left(self) -> set[int]:
        """Those that are not among the first places anyway."""
        if not self._singles:
            return self._singles
        return self._singles - set(self._order()[: self.consumed].tolist())

    def _make_deal(self) -> _Deal:
        order = self._order()
        self._singles = self._singles_left()
        places, count = None, self.length - self._start
        if self._singles:
            left = order[self._start :]
            is_left = ~torch.isin(left, torch.tensor(sorted(self._singles), dtype=order.dtype))
            places = self._start + is_left.nonzero().flatten()
            count = places.numel()
        return _Deal(self._start, count, places, order, rank(), size())
