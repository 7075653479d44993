"""Starts and ends of jobs in which ranks differ, one after the other: agreement.py FOLDER

The last of the ranks deviates. Each rank leaves the row <case>.<rank> with what it got and how long
that took.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from multiproc.watched_job import write_row

import mydist as md
from mydist import _C
from mydist.job import init as starts
from mydist.job.bootstrap import LaunchContext, detect

RANK, SIZE = int(os.environ["MYDIST_RANK"]), int(os.environ["MYDIST_SIZE"])
DEVIATES = RANK == SIZE - 1
# Lines of a hello; see csrc/job/hello.cc.
MAGIC, VERSION, PLATFORM = 0, 1, 2
SPARE_FILES = 5  # One too few for three ranks and their heartbeats.


@contextmanager
def changed_hello(line: int, text: str) -> Iterator[None]:
    """As from a build whose hello has another line."""

    def changing(*arguments: object, **more: object) -> LaunchContext:
        context = detect(*arguments, **more)  # type: ignore[arg-type]
        exchange, rounds = context.exchange, iter(range(1000))

        def say(blob: bytes) -> list[bytes]:
            if next(rounds) == 0:
                lines = blob.split(b"\n")
                lines[line] = text.encode()
                blob = b"\n".join(lines)
            assert exchange is not None
            return exchange(blob)

        object.__setattr__(context, "exchange", say)
        return context

    if DEVIATES:
        starts.detect = changing  # type: ignore[assignment]
    try:
        yield
    finally:
        starts.detect = detect  # type: ignore[attr-defined]


@contextmanager
def changed_settings(**variables: str) -> Iterator[None]:
    if DEVIATES:
        os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


@contextmanager
def few_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    if DEVIATES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + SPARE_FILES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def start() -> None:
    md.init()
    md.shutdown()


def leave_pending() -> None:
    """The last rank submits nothing, so what the others have submitted is pending at the end."""
    md.init()
    handles = []
    if not DEVIATES:
        handles = [md.allreduce_async(torch.ones(3), name=f"pending.{i}") for i in range(2)]
    # All have submitted before any leaves: else the call itself would be refused.
    md.barrier()
    md.shutdown()
    for handle in handles:
        md.synchronize(handle)


def leave_awaited() -> None:
    """As before, but the others learn of it before they leave."""
    md.init()
    handles = []
    if not DEVIATES:
        handles = [md.allreduce_async(torch.ones(3), name=f"awaited.{i}") for i in range(2)]
    md.barrier()
    try:
        if handles:
            md.synchronize(handles[0])
    finally:
        md.shutdown()


CASES: dict[str, Callable[[], None]] = {
    "version": lambda: _within(changed_hello(VERSION, "9.9.9")),
    "protocol": lambda: _within(changed_hello(MAGIC, "mydist hello 99")),
    "platform": lambda: _within(changed_hello(PLATFORM, "big-endian 64-bit")),
    "garbage": lambda: _within(changed_hello(MAGIC, "GET / HTTP/1.1")),
    "settings": lambda: _within(
        changed_settings(MYDIST_CACHE_CAPACITY="7", MYDIST_FREEZE_AFTER="3")
    ),
    "files": lambda: _within(few_files()),
    "pending": leave_pending,
    "awaited": leave_awaited,
    "nothing": start,
}


def _within(context: object) -> None:
    with context:  # type: ignore[attr-defined]
        start()


def end_while_a_thread_waits() -> None:
    """Its collective fails at the end, and then it wants the GIL, which it cannot have any more.

    Once more where the error is told of, which a thread does without the GIL in between.
    """
    md.init()
    _C.set_on_error(lambda error: time.sleep(0.03))
    data = torch.ones(3)

    def wait() -> None:
        with suppress(md.MydistError):
            md.allreduce_(data, name=f"only on rank {RANK}, {threading.get_ident()}")

    for _ in range(3):
        threading.Thread(target=wait, daemon=True).start()
    md.barrier()
    sys.exit(0)


def main() -> None:
    """As the module says."""
    folder = Path(sys.argv[1])
    start()  # What the first start loads takes its time.
    for name, run in CASES.items():
        row: dict[str, object] = {"error": "", "pid": os.getpid()}
        began = time.monotonic()
        try:
            run()
        except md.MydistError as error:
            row |= {"error": type(error).__name__, "text": str(error), "failure": error.failure}
        write_row(folder, f"{name}.{RANK}", row | {"seconds": time.monotonic() - began})
    end_while_a_thread_waits()


if __name__ == "__main__":
    main()
