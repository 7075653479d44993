"""The children of a job: its ranks and its servers, and which number each of them has. Pure.

A rank of number N is child N; the servers follow. What starts, watches, shows and stops children
passes these numbers on, and does not know which of them are ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from mydist.launcher.hosts import Host
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import RankPlacement, ServerPlacement, place_ranks, place_servers


@dataclass(frozen=True)
class Children:
    """All children of one job."""

    ranks: tuple[RankPlacement, ...]
    servers: tuple[ServerPlacement, ...] = ()

    def __len__(self) -> int:
        return len(self.ranks) + len(self.servers)

    @property
    def everyone(self) -> range:
        """All children."""
        return range(len(self))

    @property
    def of_ranks(self) -> range:
        """The children that are ranks."""
        return range(len(self.ranks))

    @property
    def of_servers(self) -> range:
        """The children that are servers."""
        return range(len(self.ranks), len(self))

    def server(self, child: int) -> ServerPlacement:
        """The server that the child is; the child must be one."""
        return self.servers[child - len(self.ranks)]

    def host(self, child: int) -> Host:
        """Where it runs."""
        is_rank = child in self.of_ranks
        return self.ranks[child].host if is_rank else self.server(child).host

    def name(self, child: int) -> str:
        """`rank 3` or `server 0`."""
        is_rank = child in self.of_ranks
        return f"rank {child}" if is_rank else f"server {self.server(child).number}"

    def mark(self, child: int) -> str:
        """What marks its output: `3` or `s0`."""
        return str(child) if child in self.of_ranks else f"s{self.server(child).number}"

    def folder(self, child: int) -> str:
        """The folder of its output files: `rank.03` or `server.0`."""
        kind, _, number = self.name(child).partition(" ")
        count = len(self.ranks if child in self.of_ranks else self.servers)
        return f"{kind}.{number.zfill(len(str(count - 1)))}"

    def by_host(self, part: range) -> dict[Host, list[int]]:
        """Those of `part` on each host that has some, hosts and children in order."""
        grouped: dict[Host, list[int]] = {}
        for child in part:
            grouped.setdefault(self.host(child), []).append(child)
        return grouped


def children_of(spec: JobSpec) -> Children:
    """Places all children of a job."""
    ranks = place_ranks(spec.hosts, spec.num_proc)
    return Children(ranks, place_servers(spec.server_hosts or hosts_of(ranks), spec.servers))


def hosts_of(ranks: tuple[RankPlacement, ...]) -> tuple[Host, ...]:
    """The hosts that ranks run on, in order."""
    return tuple(dict.fromkeys(rank.host for rank in ranks))
