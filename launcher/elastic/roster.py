"""The book that an elastic job keeps: what has happened, as `decide` wants to know it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mydist.launcher.elastic.membership import (
    Decision,
    Epoch,
    Loss,
    Member,
    Offer,
    Roster,
    Settings,
    Slot,
    Stage,
    decide,
    hosts_given_up,
)

MAX_LOSSES = 1000  # Older ones are forgotten.


@dataclass
class Report:
    """What a worker says when it waits for an epoch. `epoch` is the one it was in, 0 for none.

    `lost`: it has lost other ranks, `blamed` by their numbers; else it comes because it was asked.
    """

    epoch: int
    commit: int
    lost: bool = False
    blamed: Sequence[int] = ()


@dataclass
class Book:
    """Takes events, each with the time it is told at, and gives decisions."""

    settings: Settings
    began_at: float
    offers: tuple[Offer, ...] = ()
    members: dict[int, Member] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    epoch: Epoch | None = None
    finishing: bool = False
    given_up: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next_worker = 0
        self._halted_at = self.began_at
        self._causeless = 0
        self._has_cause = True  # For the next epoch.

    def offer(self, offers: Sequence[Offer]) -> None:
        """These hosts may be used from now on."""
        if tuple(offers) != self.offers:
            self.offers = tuple(offers)
            self._has_cause = True

    def start(self, slot: Slot, now: float) -> int:
        """A worker is started in a slot; returns its number."""
        worker = self._next_worker
        self._next_worker += 1
        self.members[worker] = Member(worker, slot, Stage.STARTING, now)
        return worker

    def ready(self, worker: int, report: Report, now: float) -> None:
        """A worker waits for the next epoch."""
        member = self.members.get(worker)
        if member is None or member.stage == Stage.READY:
            return
        if member.stage == Stage.TRAINING:
            self._halt(now)
        self._has_cause |= member.rank < 0 or not report.lost
        self.members[worker] = member._replace(
            stage=Stage.READY, since=now, commit=report.commit, lost=report.lost, blamed=0.0
        )
        if self.epoch is None or report.epoch != self.epoch.number:
            return
        for rank in report.blamed:
            blamed = self._worker_of(rank)
            if blamed is not None and blamed.stage == Stage.TRAINING and not blamed.blamed:
                self.members[blamed.worker] = blamed._replace(blamed=now)

    def end(self, worker: int, now: float, *, counts: bool = True) -> Member | None:
        """A worker has ended; its last entry. `counts`: it was lost, so its slot rests."""
        member = self.members.get(worker)
        if member is None:
            return None
        if member.stage == Stage.TRAINING:
            self._halt(now)
        del self.members[worker]
        if counts:
            self._lose(Loss(member.slot, now, joined=member.rank >= 0))
        return member

    def fail(self, slot: Slot, now: float) -> None:
        """A slot could not be filled."""
        self._lose(Loss(slot, now, joined=False))

    def _lose(self, loss: Loss) -> None:
        self._has_cause = True
        self.losses.append(loss)
        del self.losses[:-MAX_LOSSES]
        for host, count in hosts_given_up(self._roster()):
            self.given_up.setdefault(
                host,
                f"{count} workers in a row ended before they were members of the job; does the "
                "program call mydist.init()?",
            )

    def finish(self) -> None:
        """A rank has come to the end of the work."""
        self.finishing = True

    def decide(self, now: float) -> Decision:
        """See `membership.decide`. The caller does what it says, and applies a new epoch."""
        return decide(now, self._roster(), self.settings)

    def apply(self, epoch: Epoch, now: float) -> None:
        """The epoch begins."""
        self._causeless = 0 if self._has_cause else self._causeless + 1
        self._has_cause = False
        self.epoch = epoch
        for rank, worker in enumerate(epoch.workers):
            self.members[worker] = self.members[worker]._replace(
                stage=Stage.TRAINING, since=now, rank=rank, lost=False, blamed=0.0
            )

    def waits(self, now: float) -> float:
        """For how many seconds no epoch has been whole; 0 when one is."""
        return 0.0 if self.is_whole() else now - self._halted_at

    def is_whole(self) -> bool:
        """Whether all members of the last epoch are in it."""
        return self.epoch is not None and all(
            worker in self.members and self.members[worker].stage == Stage.TRAINING
            for worker in self.epoch.workers
        )

    def _halt(self, now: float) -> None:
        if self.is_whole():
            self._halted_at = now

    def _worker_of(self, rank: int) -> Member | None:
        assert self.epoch is not None
        is_rank = 0 <= rank < len(self.epoch.workers)
        return self.members.get(self.epoch.workers[rank]) if is_rank else None

    def _roster(self) -> Roster:
        return Roster(
            members=tuple(self.members.values()),
            losses=self.losses,
            offers=self.offers,
            epoch=self.epoch.number if self.epoch is not None else 0,
            commit=self.epoch.commit if self.epoch is not None else -1,
            halted_at=None if self.is_whole() else self._halted_at,
            causeless=self._causeless,
            finishing=self.finishing,
            given_up=self.given_up,
        )
