"""Rank 0 is killed before a round in which the ranks meet: killed_in_round.py ROUND

It prints `NAMES [NAME, …]` first: what lies in /dev/shm then. Rounds count from 1.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import mydist as md
from mydist.job import bootstrap, meeting

Exchange = Callable[[bytes], list[bytes]]


def dying_in(number: int, rank: int, exchange: Exchange) -> Exchange:
    """The exchange, which rank 0 does not come back from."""
    rounds = itertools.count(1)

    def call(blob: bytes) -> list[bytes]:
        if next(rounds) == number and rank == 0:
            print(f"NAMES {os.listdir('/dev/shm')}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return exchange(blob)

    return call


def main(number: int) -> None:
    def dying(*arguments: Any) -> tuple[Exchange, Callable[[], None]]:
        exchange, close = meeting.launcher_exchange(*arguments)
        return dying_in(number, arguments[2], exchange), close

    setattr(bootstrap, "launcher_exchange", dying)  # noqa: B010
    md.init()


if __name__ == "__main__":
    main(int(sys.argv[1]))
