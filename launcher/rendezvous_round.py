"""The rounds of the rendezvous: the ranks that have arrived, and their data. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

MAX_PENDING_BYTES = 1 << 30
MAX_OPEN_ROUNDS = 1024
MAX_LISTED_RANKS = 16
MAX_REMEMBERED_ROUNDS = 4096
MAX_ENDED = 16
Waiter = TypeVar("Waiter")


class RoundError(ValueError):
    """A rank's request contradicts what others of the round sent; the text goes to the client."""


@dataclass
class Round(Generic[Waiter]):
    """One named exchange. `arrived` maps each rank to its blob and to the waiter for the rest.

    `gave_up`: the ranks that had arrived and have waited too long; they are not to blame.
    """

    name: str
    size: int
    arrived: dict[int, tuple[bytes, Waiter]] = field(default_factory=dict)
    gave_up: set[int] = field(default_factory=set)

    def blobs(self) -> list[bytes]:
        """All blobs in rank order; valid once complete."""
        return [self.arrived[rank][0] for rank in range(self.size)]

    def missing(self) -> list[int]:
        """The ranks that have never arrived; when all have, those that no longer wait."""
        absent = [rank for rank in range(self.size) if rank not in self.arrived]
        return [rank for rank in absent if rank not in self.gave_up] or absent

    def describe_missing(self) -> str:
        """Which ranks have not arrived, e.g. `ranks 1, 3 (2 of 4)`."""
        missing = self.missing()
        listed = ", ".join(str(rank) for rank in missing[:MAX_LISTED_RANKS])
        more = ", …" if len(missing) > MAX_LISTED_RANKS else ""
        noun = "rank" if len(missing) == 1 else "ranks"
        return f"{noun} {listed}{more} ({len(missing)} of {self.size})"


class RoundTable(Generic[Waiter]):
    """All open rounds of a job, bounded in number and bytes."""

    def __init__(self) -> None:
        self._rounds: dict[str, Round[Waiter]] = {}
        self._pending_bytes = 0
        self._over: dict[str, None] = {}  # Names of complete rounds, the oldest first.
        self._ended: dict[str, str] = {}  # Beginnings of names, and why these rounds cannot be.

    def __len__(self) -> int:
        return len(self._rounds)

    def reserve(self, blob_bytes: int) -> None:
        """Makes room for a blob about to be read. Raises RoundError when the bound is reached."""
        if self._pending_bytes + blob_bytes > MAX_PENDING_BYTES:
            raise RoundError(
                f"the rendezvous holds {self._pending_bytes} bytes, {blob_bytes} more exceed its "
                f"limit of {MAX_PENDING_BYTES}"
            )
        self._pending_bytes += blob_bytes

    def unreserve(self, blob_bytes: int) -> None:
        """Gives the room back."""
        self._pending_bytes -= blob_bytes

    def arrive(self, name: str, rank: int, size: int, entry: tuple[bytes, Waiter]) -> Round[Waiter]:
        """Adds a rank. A complete round is returned full and forgotten. Raises RoundError."""
        opened = self._rounds.get(name)
        for prefix, why in self._ended.items():
            if name.startswith(prefix):
                raise RoundError(f"round {name!r}: {why}")
        if name in self._over:
            raise RoundError(
                f"round {name!r} is over, and rank {rank} has taken part in it. Another process of "
                "this rank has called init(). Only the rank itself calls it, not a process that it "
                "has started, such as a worker of a DataLoader"
            )
        if opened is None:
            if len(self._rounds) >= MAX_OPEN_ROUNDS:
                raise RoundError(
                    f"{MAX_OPEN_ROUNDS} rounds are open, which is the limit; cannot open {name!r}"
                )
            opened = self._rounds[name] = Round(name, size)
        if opened.size != size:
            raise RoundError(
                f"round {name!r}: rank {rank} has size {size}, other ranks have {opened.size}; "
                f"all ranks must agree on the size"
            )
        if rank in opened.arrived:
            raise RoundError(
                f"round {name!r}: rank {rank} has already arrived: two processes have this rank "
                "number. Only the rank itself calls init(), not a process that it has started"
            )
        opened.arrived[rank] = entry
        opened.gave_up.discard(rank)
        if len(opened.arrived) == size:
            del self._rounds[name]
            self._over[name] = None
            if len(self._over) > MAX_REMEMBERED_ROUNDS:
                del self._over[next(iter(self._over))]
        return opened

    def end(self, prefix: str, why: str) -> list[Waiter]:
        """Rounds whose names begin so are over; returns the waiters of those that are open.

        Only the last MAX_ENDED beginnings are remembered.
        """
        self._ended[prefix] = why
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        names = [name for name in self._rounds if name.startswith(prefix)]
        rounds = [self._rounds.pop(name) for name in names]
        return [waiter for ended in rounds for _, waiter in ended.arrived.values()]

    def withdraw(self, opened: Round[Waiter], rank: int, timed_out: bool = False) -> None:
        """Takes back a rank that no longer waits; does nothing for a complete round.

        One that `timed_out` is not among the missing ranks, as long as another one waits.
        """
        if self._rounds.get(opened.name) is opened:
            opened.arrived.pop(rank, None)
            if timed_out:
                opened.gave_up.add(rank)
            if not opened.arrived:
                del self._rounds[opened.name]
