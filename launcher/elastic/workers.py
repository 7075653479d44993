"""The workers of an elastic job: which ones were started, where, and which rank each is now.

It stands for `Children` where output and processes are concerned; a worker's number is its child.
"""

from __future__ import annotations

from dataclasses import replace

from mydist.launcher.children import Children
from mydist.launcher.elastic.membership import Epoch
from mydist.launcher.hosts import Host


class Workers(Children):
    """Grows with each worker that is started; numbers are not used again."""

    def __init__(self) -> None:
        super().__init__(())
        self._hosts: list[Host] = []
        self._slots: list[int] = []
        self._ranks: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def of_ranks(self) -> range:
        """All of them."""
        return range(len(self))

    @property
    def of_servers(self) -> range:
        """None."""
        return range(0)

    def add(self, worker: int, host: Host, slot: int) -> None:
        """The next worker, which runs in this slot of a host."""
        assert worker == len(self)
        self._slots.append(slot)
        self._hosts.append(replace(host, slots=1))

    def number(self, epoch: Epoch) -> None:
        """Members get the ranks of the epoch; others keep their last one."""
        for rank, worker in enumerate(epoch.workers):
            self._ranks[worker] = rank

    def slot(self, worker: int) -> int:
        """Which one of its host, from 0."""
        return self._slots[worker]

    def host(self, child: int) -> Host:
        """Where it runs."""
        return self._hosts[child]

    def name(self, child: int) -> str:
        """`rank 3`, or `worker 7` of one that has never been a member."""
        return f"rank {self._ranks[child]}" if child in self._ranks else f"worker {child}"

    def mark(self, child: int) -> str:
        """What marks its output: `3` or `w7`."""
        return str(self._ranks[child]) if child in self._ranks else f"w{child}"

    def folder(self, child: int) -> str:
        """The folder of its output files: `worker.7`."""
        return f"worker.{child}"
