"""prepare_loader: the DataLoader of a script that has one process, dealt out to the ranks."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler as TorchDistributedSampler

from ..job.process_set import ProcessSet, global_process_set
from .sampler import HOW_TO_SHARE, DistributedSampler, Tail

__all__ = ["prepare_loader"]

T = TypeVar("T")

# What a DataLoader was made with and another one can be made with; the samplers are not among it.
_SETTINGS = (
    "batch_size",
    "num_workers",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)


class _DistributedLoader(DataLoader[T]):
    """A DataLoader that counts epochs and batches for its DistributedSampler."""

    def __init__(self, dataset: Dataset[T], sampler: DistributedSampler, **options: Any) -> None:
        sampler._counts_itself = False
        self._seeds_workers = options.get("generator") is None
        if self._seeds_workers:
            options["generator"] = torch.Generator("cpu")
        super().__init__(dataset, sampler=sampler, **options)

    @property
    def _dealer(self) -> DistributedSampler:
        assert isinstance(self.sampler, DistributedSampler)
        return self.sampler

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises a private class
        sampler = self._dealer
        if sampler._begun:  # The last loop was left early; this one is the next epoch.
            sampler.set_epoch(sampler.epoch + 1)
        if self._seeds_workers:
            self._seed_workers()
        total, step = len(sampler), self.batch_size or 1
        assert self.generator is not None
        device = self.generator.device
        # torch draws a number from it here. Forked workers keep the context, which costs them time.
        is_default = torch.get_default_device() == device
        with contextlib.nullcontext() if is_default else device:
            batches = super().__iter__()
        for batch in batches:
            sampler._given = min(sampler._given + step, total)
            yield batch
        sampler.set_epoch(sampler.epoch + 1)

    def _seed_workers(self) -> None:
        """Other random numbers in the workers of every rank and epoch, whatever torch's seed."""
        sampler = self._dealer
        place = f"{sampler.seed} {sampler.epoch} {sampler.process_set.rank()}"
        self.generator.manual_seed(random.Random(place).getrandbits(63))

    def set_epoch(self, epoch: int) -> None:
        """The next loop is this epoch, for scripts that count themselves; see the sampler's."""
        self._dealer.set_epoch(epoch)

    def state_dict(self) -> dict[str, int | bool]:
        """The epoch and how many of its samples the loop has been given; see the sampler's."""
        return self._dealer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next loop goes on there; see `DistributedSampler.load_state_dict`."""
        self._dealer.load_state_dict(state)


def prepare_loader(
    loader: DataLoader[T] | Dataset[T],
    *,
    shuffle: bool | None = None,
    seed: int | None = None,
    tail: Tail = "pad",
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> _DistributedLoader[T]:
    """A DataLoader with the same settings that gives each rank its share of the dataset.

    Every loop over it is one epoch with an order of its own; set_epoch() need not be called. A loop
    that was left early is not continued: the next one is the next epoch. `state_dict()` is exact
    between batches, also with workers, and `load_state_dict()` makes the next loop go on there, on
    as many ranks as there are then. Unless a `generator` is given, workers get random numbers that
    differ between ranks and epochs and come again after a resume at the start of an epoch.

    Args:
        loader: a DataLoader, whose settings are kept, or a dataset with a length.
        shuffle: None: as `loader` does; a dataset is shuffled.
        seed: of the order, equal on all ranks. None: 0, or what `loader` has in a
            DistributedSampler.
        tail: "pad", "drop" or "join", see `DistributedSampler`.
        process_set: the ranks that share the dataset.
        **options: of DataLoader, e.g. `batch_size`, per rank; they win over those of `loader`.

    Returns:
        A DataLoader; its batches have the shapes of `loader`'s, its length is that of this rank.

    Raises:
        ValueError: the dataset can only be iterated, the loader has a batch_sampler, a sampler of
            its own or is of a derived class; or what `DistributedSampler` refuses.
        TypeError: neither a DataLoader nor a dataset, or an unknown option.
    """
    for name in ("sampler", "batch_sampler"):
        if name in options:
            raise ValueError(
                f"prepare_loader: got {name}=, but prepare_loader makes the sampler itself; "
                "leave it out, or "
                "give a DataLoader of your own sampler=mydist.DistributedSampler(dataset)"
            )
    if isinstance(loader, DataLoader):
        _check_loader(loader)
        dataset: Dataset[T] = loader.dataset
        known_shuffle, known_seed = _order_of(loader.sampler)
        options = _settings_of(loader) | options
    else:
        dataset, known_shuffle, known_seed = loader, True, 0
    _check_dataset(dataset)
    sampler = DistributedSampler(
        dataset,  # type: ignore[arg-type]  # has a length, which is checked
        shuffle=known_shuffle if shuffle is None else shuffle,
        seed=known_seed if seed is None else seed,
        tail=tail,
        process_set=process_set,
    )
    return _DistributedLoader(dataset, sampler, **options)


def _settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    settings = {name: getattr(loader, name) for name in _SETTINGS}
    if loader.num_workers == 0:
        del settings["prefetch_factor"]
    if getattr(loader, "_seeds_workers", False):
        del settings["generator"]
    if loader.collate_fn not in (
        torch.utils.data.default_collate,
        torch.utils.data.default_convert,
    ):
        settings["collate_fn"] = loader.collate_fn
    return settings


def _order_of(sampler: Any) -> tuple[bool, int]:
    """Whether a loader's sampler shuffles, and its seed. Raises ValueError if it does more."""
    if isinstance(sampler, (DistributedSampler, TorchDistributedSampler)):
        return sampler.shuffle, sampler.seed
    if type(sampler) is SequentialSampler:
        return False, 0
    if type(sampler) is RandomSampler:
        if not sampler.replacement and sampler.num_samples == len(sampler.data_source):
            return True, 0
        what = "a RandomSampler with replacement or num_samples"
    else:
        what = f"a {type(sampler).__qualname__}"
    raise ValueError(
        f"prepare_loader: the loader has {what}, which selects the samples itself, and "
        "prepare_loader cannot split that selection; pass the dataset (torch.utils.data.Subset for "
        "a part), "
        "or let the sampler draw different samples on each rank and use the loader unchanged"
    )


def _check_loader(loader: DataLoader[Any]) -> None:
    _check_dataset(loader.dataset)
    if type(loader) not in (DataLoader, _DistributedLoader):
        raise ValueError(
            f"prepare_loader: the loader is a {type(loader).__qualname__}, and a DataLoader made "
            "from it would lose what that class adds; make it with "
            "sampler=mydist.DistributedSampler(dataset) instead"
        )
    if loader.batch_size is None and loader.batch_sampler is not None:
        raise ValueError(
            f"prepare_loader: the loader has the batch_sampler "
            f"{type(loader.batch_sampler).__qualname__}, which selects the samples itself; make a "
            "loader with batch_size=, or build the batch sampler on a mydist.DistributedSampler"
        )


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            f"prepare_loader: {type(dataset).__qualname__} is an IterableDataset, whose samples "
            f"have no index{HOW_TO_SHARE}"
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"prepare_loader: got {type(dataset).__qualname__}, expected a DataLoader or a dataset "
            "with __getitem__ and __len__"
        )
