"""Whole numbers as arguments of tables."""

from __future__ import annotations

from typing import Any

from ..job.error_text import check_whole

__all__ = ["check_between"]


def check_between(what: str, value: Any, least: int, most: int) -> int:
    """The argument; `what` names the call and the argument.

    Raises:
        TypeError: it is no int.
        ValueError: it is below `least` or above `most`.
    """
    if check_whole(what, value) < least:
        raise ValueError(f"{what} is {value}, expected at least {least}")
    if value > most:
        raise ValueError(f"{what} is {value}, expected at most {most}")
    return int(value)
