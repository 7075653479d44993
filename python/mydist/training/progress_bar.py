"""progress: how far a loop has come, shown once per job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TextIO, TypeVar

import torch

from ..job.error_text import check_whole
from ..job.topology import is_initialized, rank

__all__ = ["progress"]

T = TypeVar("T")

_WIDTH = 30
# Seconds between two drawings in place, and between two lines where output is collected.
_TERMINAL_SECONDS = 0.1
_LINE_SECONDS = 5.0


class _Progress(Generic[T]):
    """An iterable that passes the items through and draws a bar now and then."""

    def __init__(
        self,
        items: Iterable[T],
        description: str,
        total: int | None,
        interval: float,
        stream: TextIO | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._items = items
        self._description = description
        self._total = total
        self._interval = interval
        self._stream = stream
        self._clock = clock
        self._values: dict[str, Any] = {}

    def show(self, **values: Any) -> None:
        """Puts values, e.g. loss=loss, behind the bar from its next drawing on.

        Numbers and tensors of one element are shown with four digits. They are read when the bar is
        drawn, not before, so a tensor on a GPU is not waited for in every step.
        """
        self._values.update(values)

    def __iter__(self) -> Iterator[T]:
        if self._stream is None:
            yield from self._items
            return
        start = drawn = self._clock()
        done = 0
        try:
            for item in self._items:
                yield item  # Back here, the loop's body has dealt with the item.
                done += 1
                now = self._clock()
                if now - drawn >= self._interval:
                    self._draw(self._stream, done, now - start, last=False)
                    drawn = now
        finally:  # Also when the loop is left, so that what follows begins on a line of its own.
            self._draw(self._stream, done, self._clock() - start, last=True)

    def _draw(self, stream: TextIO, done: int, seconds: float, last: bool) -> None:
        line = self._line(done, seconds)
        if stream.isatty():
            line = f"\r{line}\x1b[K"  # Erases what a longer line has left.
            stream.write(line + "\n" if last else line)
        else:
            stream.write(line + "\n")
        stream.flush()

    def _line(self, done: int, seconds: float) -> str:
        parts = [self._description] if self._description else []
        if self._total is None:
            parts.append(str(done))
        else:
            filled = _WIDTH * min(done, self._total) // max(1, self._total)
            parts.append(f"[{'#' * filled:<{_WIDTH}}] {done}/{self._total}")
        parts += [f"{name} {_short(value)}" for name, value in self._values.items()]
        if seconds > 0:
            parts.append(f"{done / seconds:,.1f}/s")
        return " ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.detach().item()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def progress(
    iterable: Iterable[T],
    description: str = "",
    *,
    total: int | None = None,
    interval: float | None = None,
) -> _Progress[T]:
    """Iterates over `iterable`; on rank 0 a bar on stderr shows how far it is.

        bar = md.progress(loader, "epoch 1")
        for batch in bar:
            …
            bar.show(loss=loss)

    On a terminal the bar is redrawn in place, elsewhere (a pipe, which `mydistrun` reads, or a
    file) each drawing is a line of its own. The last drawing is at the end of the loop. Other ranks
    show nothing. Without mydist.init() the process counts as rank 0.

    Args:
        iterable: what to loop over; lazily, one item at a time.
        description: in front of the bar.
        total: how many items there are. None: `len(iterable)`; where that is unknown, only the
            number done is shown.
        interval: seconds between two drawings. None: 0.1 on a terminal, else 5.

    Returns:
        An iterable over the same items, with a method `show(**values)`.

    Raises:
        TypeError: `iterable` cannot be iterated, or `total` is no int.
        ValueError: `total` or `interval` is negative.
    """
    if not isinstance(iterable, Iterable):
        raise TypeError(
            f"progress: got {type(iterable).__qualname__}, expected an iterable; use range(n) for "
            "a loop of n steps"
        )
    if total is not None and check_whole("progress: total", total, "an int or None") < 0:
        raise ValueError(f"progress: total is {total}, expected at least 0")
    if interval is None:
        interval = _TERMINAL_SECONDS if sys.stderr.isatty() else _LINE_SECONDS
    elif not interval >= 0:
        raise ValueError(f"progress: interval is {interval}, expected at least 0 seconds")
    stream = sys.stderr if not is_initialized() or rank() == 0 else None
    return _Progress(iterable, description, _total(iterable, total), interval, stream)


def _total(iterable: Any, total: int | None) -> int | None:
    if total is not None or not isinstance(iterable, Sized):
        return total
    try:
        return len(iterable)
    except TypeError:  # A DataLoader has __len__ even where its dataset has none.
        return None
