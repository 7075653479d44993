"""An exception in one line of a message, whatever its class makes of itself."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """The class and the text. Never raises, also where the exception's own `__str__` does."""
    name = type(error).__qualname__
    try:
        return f"{name}: {error}"
    except Exception as failure:
        return f"{name} (its text is unavailable: __str__ raised {type(failure).__qualname__})"
