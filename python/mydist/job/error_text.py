"""Texts of errors: of wrong arguments, and of an exception that another message quotes."""

from __future__ import annotations

from typing import Any


def wrong_type(what: str, value: object, expected: str) -> TypeError:
    """Of an argument; `what` names the call and the argument."""
    return TypeError(f"{what} is {value!r} ({type(value).__qualname__}), expected {expected}")


def check_whole(what: str, value: Any, expected: str = "an int") -> int:
    """The argument, which must be an int and no bool. Raises TypeError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(what, value, expected)
    return value


def text_of(error: BaseException) -> str:
    """The class and the text. Never raises, also where the exception's own `__str__` does."""
    name = type(error).__qualname__
    try:
        return f"{name}: {error}"
    except Exception as failure:
        return f"{name} (its text is unavailable: __str__ raised {type(failure).__qualname__})"
