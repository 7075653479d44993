"""What the checks of process groups share; each of their modules has a list of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

Check = Callable[[], None]


def new_checks() -> tuple[list[Check], Callable[[Check], Check]]:
    """An empty list, and the decorator that adds a check to it."""
    checks: list[Check] = []

    def check(function: Check) -> Check:
        checks.append(function)
        return function

    return checks, check


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()
