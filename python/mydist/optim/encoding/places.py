"""Places: which rank of a process set sums and encodes what. Pure.

A tensor is cut into as many slices as there are ranks; rank j owns slice j. The ranks of a host
first add up their values as they are. One of them, the sender of the slice, encodes the host's sum
for the owner. So what leaves a host is encoded once, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Places:
    """Ranks are numbers within the set.

    Args:
        hosts: the host of each rank.
        rank: this one.
    """

    hosts: Sequence[str]
    rank: int
    members: dict[str, list[int]] = field(init=False, compare=False)  # By host, both ascending.

    def __post_init__(self) -> None:
        members: dict[str, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            members.setdefault(host, []).append(rank)
        object.__setattr__(self, "members", members)

    @classmethod
    def apart(cls, size: int, rank: int) -> Places:
        """As if each rank had a host of its own."""
        return cls([str(number) for number in range(size)], rank)

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self.hosts)

    @property
    def is_one_host(self) -> bool:
        """Nothing leaves it."""
        return len(self.members) == 1

    @property
    def adds_up(self) -> bool:
        """Whether a host has several ranks, which add up their values first."""
        return len(self.members) < self.size

    @property
    def neighbours(self) -> list[int]:
        """The ranks of this host, with this one."""
        return self.members[self.hosts[self.rank]]

    def sender(self, host: str, owner: int) -> int:
        """The rank of that host that has its sum of the owner's slice."""
        ranks = self.members[host]
        return owner if self.hosts[owner] == host else ranks[owner % len(ranks)]

    def summed_by(self, rank: int) -> list[int]:
        """The owners whose slices that rank sums for its host."""
        host = self.hosts[rank]
        return [owner for owner in range(self.size) if self.sender(host, owner) == rank]

    def sent_by(self, rank: int) -> list[int]:
        """The owners on other hosts to which that rank sends."""
        return [owner for owner in self.summed_by(rank) if self.hosts[owner] != self.hosts[rank]]

    def senders_to(self, owner: int) -> list[int]:
        """The ranks whose sums of the slice the owner adds up: one of each host, in their order."""
        return [self.sender(host, owner) for host in self.members]
