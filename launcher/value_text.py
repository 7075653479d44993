"""The texts of values, and what is allowed in them, in the words of csrc/config/config.cc. Pure.

A converter turns a text into a value, or raises ValueError saying what it expected. A blank before
or after a value is refused, as the core refuses it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence

Convert = Callable[[str], object]
_INTEGER = re.compile(r"-?[0-9]{1,400}\Z")
_NUMBER = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_INTERFACE = re.compile(r"[!-.0-~]{1,15}\Z")
_NAME = re.compile(r"[a-z0-9_-]{1,64}\Z")


def integer(low: int, high: int) -> Convert:
    """A converter for an integer within [low, high]."""

    def convert(text: str) -> int:
        value = int(text) if _INTEGER.match(text) else None
        if value is None or not low <= value <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return value

    return convert


def number(low: float, high: float, unit: str = "", or_zero: bool = False) -> Convert:
    """A converter for a number within [low, high], or also for 0; fractions are allowed."""

    def convert(text: str) -> float:
        value = float(text) if _NUMBER.match(text) else math.nan
        if not low <= value <= high and not (or_zero and value == 0):
            zero = "0 or " if or_zero else ""
            raise ValueError(f"{zero}a number{unit} from {low:.10g} to {high:.10g}")
        return value

    return convert


def seconds(low: float, high: float) -> Convert:
    """A converter for a duration in seconds within [low, high]; fractions are allowed."""
    return number(low, high, " of seconds")


def seconds_or_zero(low: float, high: float) -> Convert:
    """The same where 0 has a meaning of its own."""
    return number(low, high, " of seconds", or_zero=True)


def choice(options: Sequence[str]) -> Convert:
    """A converter for one of the words given."""

    def convert(text: str) -> str:
        if text not in options:
            raise ValueError(f"{', '.join(options[:-1])} or {options[-1]}")
        return text

    return convert


def text_value(text: str) -> str:
    """A converter for any text but the empty one."""
    if not text or "\0" in text:
        raise ValueError("a text that is not empty")
    return text


def path(text: str) -> str:
    """A converter for the path of a file."""
    if not 0 < len(text.encode("utf-8", "surrogateescape")) <= 4095 or "\0" in text:
        raise ValueError("a path of at most 4095 bytes")
    return text


def paths(text: str) -> str:
    """A converter for paths separated by colons."""
    if not all(text.split(":")) or "\0" in text:
        raise ValueError("paths of libraries, separated by colons")
    return text


def row_name(text: str) -> str:
    """A converter for the name of a transport or an algorithm, which an extension may add."""
    if not _NAME.match(text):
        raise ValueError("a name of up to 64 small letters, digits, '_' and '-'")
    return text


def words(text: str) -> tuple[str, ...]:
    """A converter for shell-like words."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"words quoted as in a shell ({error})") from None


def interface_names(text: str) -> tuple[str, ...]:
    """A converter for a comma-separated list of network interface names."""
    names = tuple(name.strip(" ") for name in text.split(","))
    if not all(_INTERFACE.match(name) for name in names):
        raise ValueError("names of 1 to 15 characters, separated by commas")
    return names


def cooldown_range(text: str) -> tuple[float, float]:
    """A converter for the shortest and the longest cool-down of a slot, `1,60`, in seconds."""
    parts = text.split(",")
    numbers = [float(part) if _NUMBER.match(part) else math.nan for part in parts]
    low, high = numbers[0], numbers[-1]
    if len(parts) > 2 or not 0 <= low <= high <= 86400:
        raise ValueError("one or two numbers of seconds from 0 to 86400, the smaller one first")
    return low, high


def switch(text: str) -> bool:
    """A converter for a switch written out."""
    if text in ("1", "true"):
        return True
    if text in ("0", "false"):
        return False
    raise ValueError("0, 1, true or false")
