"""progress: what is written, where and when; by a clock that the test moves."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from refusals import expect_refusal, refusals

import mydist as md
from mydist import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Moves one second forward whenever it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lines(
    items: Iterable[Any],
    total: int | None,
    stream: io.StringIO,
    interval: float = 2.0,
    description: str = "epoch 1",
) -> str:
    """What is written when every item takes a second and has loss = item / 8."""
    clock = Clock()
    bar = progress_bar._Progress(items, description, total, interval, stream, clock)
    for item in bar:
        clock.now += 1.0
        bar.show(loss=torch.tensor(item / 8, requires_grad=True))
    return stream.getvalue()


def test_a_pipe_gets_a_line_per_interval_and_one_at_the_end() -> None:
    assert lines(range(5), 5, io.StringIO()).splitlines() == [
        "epoch 1 [############                  ] 2/5 loss 0.125 1.0/s",
        "epoch 1 [########################      ] 4/5 loss 0.375 1.0/s",
        "epoch 1 [##############################] 5/5 loss 0.5 1.0/s",
    ]


def test_a_terminal_is_redrawn_in_place() -> None:
    text = lines(range(2), 2, Terminal(), interval=1.0)
    half, full = "#" * 15 + " " * 15, "#" * 30
    assert text == (
        f"\repoch 1 [{half}] 1/2 loss 0 1.0/s\x1b[K"
        f"\repoch 1 [{full}] 2/2 loss 0.125 1.0/s\x1b[K"
        f"\repoch 1 [{full}] 2/2 loss 0.125 1.0/s\x1b[K\n"
    )


def test_without_a_total_the_count_is_shown() -> None:
    text = lines(iter(range(3)), None, io.StringIO(), interval=10.0, description="")
    assert text == "3 loss 0.25 1.0/s\n"


def test_values_are_read_when_the_bar_is_drawn_only() -> None:
    class Loud(float):
        def __format__(self, spec: str) -> str:
            read.append(float(self))
            return super().__format__(spec)

    read: list[float] = []
    clock = Clock()
    bar = progress_bar._Progress(range(100), "", 100, 50.0, io.StringIO(), clock)
    for item in bar:
        clock.now += 1.0
        bar.show(value=Loud(item))
    assert read == [49.0, 99.0, 99.0]


def test_passes_the_items_through_lazily(capsys: pytest.CaptureFixture[str]) -> None:
    endless = md.progress(itertools.count(), interval=0)
    assert list(itertools.islice(endless, 3)) == [0, 1, 2]
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.splitlines()[0].startswith("1")


def test_takes_the_total_from_the_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(md.progress([1, 2], "two", interval=100)) == [1, 2]
    assert "two [##############################] 2/2" in capsys.readouterr().err
    list(md.progress(iter([1, 2]), total=4, interval=100))
    assert "2/4" in capsys.readouterr().err


def test_a_loop_that_is_left_ends_the_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for item in md.progress(range(9), interval=0):
        if item == 3:
            break
    assert terminal.getvalue().count("\r") == 4
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("\n")


WRONG = refusals(
    """
md.progress(5)
    TypeError: got int, expected … use range(n)
md.progress([], total=1.5)
    TypeError: total is 1.5 (float)
md.progress([], total=True)
    TypeError: total is True
md.progress([], total=-1)
    ValueError: total is -1, expected at least 0
md.progress([], interval=-1)
    ValueError: interval is -1, expected at least 0 seconds
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_use(call: str, error: str) -> None:
    expect_refusal(call, error, globals())
