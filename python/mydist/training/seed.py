"""seed_everything: the random numbers of Python, numpy and torch, from one number."""

from __future__ import annotations

import random
import sys

import torch

from ..job.error_text import check_whole
from ..job.topology import rank

__all__ = ["seed_everything"]


def seed_everything(seed: int, rank_offset: bool = True) -> int:
    """Seeds Python's random, torch on all devices, and numpy if it has been imported.

    With the offset each rank draws numbers of its own (dropout, augmentation); without it all draw
    the same, so that models start equal. Models made after a call with the offset differ until
    `broadcast_parameters`.

    Workers of a DataLoader need nothing more: torch seeds random, numpy and itself in each worker
    from its own random numbers, which then differ between ranks; `prepare_loader` does without.

    Args:
        seed: from 0 to 2**62, equal on all ranks.
        rank_offset: add rank() to it.

    Returns:
        The seed that was used on this rank; numpy gets it modulo 2**32.

    Raises:
        TypeError: `seed` is no int.
        ValueError: it is out of range; with `rank_offset` also before mydist.init().
    """
    check_whole("seed_everything: seed", seed)
    if not 0 <= seed <= 2**62:
        raise ValueError(f"seed_everything: seed is {seed}, expected a number from 0 to 2**62")
    used = seed + rank() if rank_offset else seed
    random.seed(used)
    torch.manual_seed(used)  # CUDA's generators too, now or when CUDA is first used.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(used % 2**32)
    return used
