"""Which rank and which server runs where. Pure: a host list in, a placement of each out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mydist.launcher.hosts import Host


@dataclass(frozen=True)
class RankPlacement:
    """The place of one rank: among all ranks, on its host, and across the hosts.

    `cross_rank` counts the hosts before this one that have a rank with the same `local_rank`;
    `cross_size` is how many hosts have one. `node_rank` is the index of the host among those used.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    node_rank: int
    host: Host


def place_ranks(hosts: tuple[Host, ...], num_proc: int) -> tuple[RankPlacement, ...]:
    """Fills the hosts in the order given, each up to its slots; see hosts.require_slots."""
    used: list[tuple[Host, int]] = []
    left = num_proc
    for host in hosts:
        if left > 0:
            used.append((host, min(host.slots, left)))
            left -= host.slots
    # How many hosts have a rank with this local rank, in all and so far.
    sharing = Counter(local_rank for _, count in used for local_rank in range(count))
    before: Counter[int] = Counter()
    placements: list[RankPlacement] = []
    for node_rank, (host, local_size) in enumerate(used):
        for local_rank in range(local_size):
            placements.append(
                RankPlacement(
                    rank=len(placements),
                    size=num_proc,
                    local_rank=local_rank,
                    local_size=local_size,
                    cross_rank=before[local_rank],
                    cross_size=sharing[local_rank],
                    node_rank=node_rank,
                    host=host,
                )
            )
            before[local_rank] += 1
    return tuple(placements)


@dataclass(frozen=True)
class ServerPlacement:
    """The place of one server: its number among them, from 0, and its host."""

    number: int
    host: Host


def place_servers(hosts: tuple[Host, ...], count: int) -> tuple[ServerPlacement, ...]:
    """Spreads the servers over the hosts in turn. They take no slots."""
    return tuple(ServerPlacement(number, hosts[number % len(hosts)]) for number in range(count))
