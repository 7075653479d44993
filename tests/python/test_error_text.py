"""Exceptions in one line, also those that cannot be made a text of."""

from __future__ import annotations

import pytest

from mydist.job.error_text import text_of


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("a"), "KeyError: 'a'"),
        (Mute("x"), "Mute (its text is unavailable: __str__ raised RuntimeError)"),
        (NoText(), "NoText (its text is unavailable: __str__ raised TypeError)"),
    ],
)
def test_the_class_is_always_named(error: Exception, text: str) -> None:
    assert text_of(error) == text
