"""Membership of the next epoch of an elastic job: a pure function, `decide`. Time is an argument.

An epoch is one job of the ranks: its members, with their numbers. Epochs count from 1. A *worker*
is a process that mydistrun has started; its number is never used again. A *slot* is a place on a
host for one worker.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# A member that others have lost, and that does not come itself, is ended after so many seconds.
BLAME_SECONDS = 2.0
# Newcomers that are ready wait so long for others that start, so that both cause one new epoch.
GATHER_SECONDS = 1.0
# The first epoch waits so long for workers that start, when there are enough without them.
PATIENCE_SECONDS = 30.0
# A host is given up when so many of its workers in a row have ended before they were a member.
MAX_FAILED_STARTS = 4
# A job ends when so many epochs in a row had no cause that mydistrun knows of.
MAX_CAUSELESS = 5
# A slot's losses are forgotten after so many seconds, or the longest cool-down if that is longer.
FORGET_SECONDS = 600.0
UNSYNCED = -1  # The commit of a worker that does not have the state of the job yet.


class Slot(NamedTuple):
    """A place for one worker."""

    host: str
    number: int


@dataclass(frozen=True)
class Settings:
    """What the flags say. Times are in seconds; `reset_limit` counts epochs after the first.

    `may_grow`: a script may still name other hosts.
    """

    min_np: int
    max_np: int
    timeout: float = 600.0
    cooldown: tuple[float, float] = (0.5, 60.0)
    reset_limit: int | None = None
    may_grow: bool = False


class Offer(NamedTuple):
    """A host that may be used, and how many slots it has."""

    host: str
    slots: int


class Stage(enum.IntEnum):
    """What a worker does."""

    STARTING = 0  # It has not reported yet.
    READY = 1  # It waits for the next epoch.
    TRAINING = 2  # It is a member of the present epoch.


class Member(NamedTuple):
    """A living worker.

    `since`: when its stage began. `rank`: its last number; -1 in no epoch yet. `commit`: the
    number of the commit it has. `lost`: whether it is ready because it lost others. `blamed`: when
    others said that they have lost it; 0: they have not.
    """

    worker: int
    slot: Slot
    stage: Stage
    since: float
    rank: int = -1
    commit: int = UNSYNCED
    lost: bool = False
    blamed: float = 0.0


class Loss(NamedTuple):
    """A worker that ended. `joined`: it had been a member of an epoch."""

    slot: Slot
    at: float
    joined: bool


class Epoch(NamedTuple):
    """The members in the order of their ranks, and the rank whose state all get."""

    number: int
    workers: tuple[int, ...]
    root: int
    commit: int


@dataclass(frozen=True)
class Decision:
    """What mydistrun does now.

    `start`: slots that get a worker. `stop`: workers that are ended, each with the reason.
    `dismiss`: ready workers that are told to end. `ask`: whether the members are told that a new
    epoch is wanted at their next commit. `form`: the next epoch. `give_up`: why the job ends.
    """

    start: tuple[Slot, ...] = ()
    stop: tuple[tuple[int, str], ...] = ()
    dismiss: tuple[int, ...] = ()
    ask: bool = False
    form: Epoch | None = None
    give_up: str = ""


@dataclass
class Roster:
    """What is known at one moment, apart from the time and the settings.

    `epoch`: the number of the last epoch that was formed, 0 for none; `commit`: the commit that its
    root had. `halted_at`: since when the last epoch has lacked a member, or there was none; None
    while it is whole. `causeless`: how many epochs in a row were formed although no worker was lost
    and no slot was offered. `finishing`: a rank has reached the end of its work.
    """

    members: Sequence[Member] = ()
    losses: Sequence[Loss] = ()
    offers: Sequence[Offer] = ()
    epoch: int = 0
    commit: int = UNSYNCED
    halted_at: float | None = 0.0
    causeless: int = 0
    finishing: bool = False
    given_up: dict[str, str] = field(default_factory=dict)


def decide(now: float, roster: Roster, settings: Settings) -> Decision:
    """The next step. It depends on nothing but its arguments.

    Called again whenever something has happened, and a few times a second.
    """
    if roster.finishing:
        # The work is done, so no worker starts, and none begins it again.
        idle = [m for m in roster.members if m.stage != Stage.TRAINING]
        return Decision(
            stop=tuple((m.worker, "") for m in idle if m.rank < 0),
            dismiss=tuple(m.worker for m in idle if m.rank >= 0),
        )
    members = roster.members
    wanted = _wanted_slots(roster)
    start = tuple(_slots_to_fill(now, roster, settings, wanted))
    training = [m for m in members if m.stage == Stage.TRAINING]
    ready = [m for m in members if m.stage == Stage.READY]
    if training:
        stop = tuple(_overdue(now, roster, training, settings))
        ask = not any(m.lost for m in ready) and _is_change_due(now, members, settings, wanted)
        return Decision(start=start, stop=stop, ask=ask)
    if reason := _end_of_job(roster, settings, ready):
        return Decision(give_up=reason)
    chosen, unwanted = _choose(ready, wanted, settings)
    if len(chosen) < settings.min_np:
        return Decision(start=start, give_up=_too_few(now, roster, settings, ready))
    if _waits_for_starters(now, roster, chosen):
        return Decision(start=start)
    if settings.reset_limit is not None and roster.epoch > settings.reset_limit:
        return Decision(give_up=f"--reset-limit {settings.reset_limit} is reached")
    return Decision(start=start, form=_epoch_of(roster, chosen), dismiss=unwanted)


def cooldown_of(losses: int, settings: Settings) -> float:
    """How long a slot rests after so many losses in a row; from 1."""
    low, high = settings.cooldown
    return min(high, low * 2.0 ** min(losses - 1, 60))


def hosts_given_up(roster: Roster) -> Iterator[tuple[str, int]]:
    """Hosts where too many workers in a row ended before they were members, and how many."""
    failed: Counter[str] = Counter()
    for loss in roster.losses:
        failed[loss.slot.host] = 0 if loss.joined else failed[loss.slot.host] + 1
    for host, count in failed.items():
        # A host with a living member works.
        if count >= MAX_FAILED_STARTS and not any(
            m.slot.host == host and m.rank >= 0 for m in roster.members
        ):
            yield host, count


def _wanted_slots(roster: Roster) -> dict[Slot, None]:
    """The slots of the offers, in order, but for those of hosts that are given up."""
    return {
        Slot(offer.host, number): None
        for offer in roster.offers
        if offer.host not in roster.given_up
        for number in range(offer.slots)
    }


def _slots_to_fill(
    now: float, roster: Roster, settings: Settings, wanted: dict[Slot, None]
) -> Iterator[Slot]:
    """Free slots that do not rest, as many as the job may still have workers."""
    used = {m.slot for m in roster.members}
    room = settings.max_np - sum(m.slot in wanted for m in roster.members)
    if room <= 0:
        return
    keep = max(FORGET_SECONDS, settings.cooldown[1])
    counts: Counter[Slot] = Counter()
    last: dict[Slot, float] = {}
    for loss in roster.losses:
        if now - loss.at <= keep:
            counts[loss.slot] += 1
            last[loss.slot] = loss.at
    for slot in wanted:
        if slot in used or (
            slot in last and now < last[slot] + cooldown_of(counts[slot], settings)
        ):
            continue
        yield slot
        room -= 1
        if room == 0:
            return


def _overdue(
    now: float, roster: Roster, training: Sequence[Member], settings: Settings
) -> Iterator[tuple[int, str]]:
    """Members that do not leave the epoch although others have left it."""
    if roster.halted_at is None:
        return
    patience = settings.timeout / 2  # So a replacement has the other half.
    for m in training:
        if m.blamed and now - m.blamed > BLAME_SECONDS:
            yield (
                m.worker,
                f"other ranks have lost it, and it did not answer for {BLAME_SECONDS:g} s",
            )
        elif now - roster.halted_at > patience:
            yield (
                m.worker,
                f"it did not leave the epoch within {patience:g} s, half of --elastic-timeout",
            )


def _is_change_due(
    now: float, members: Sequence[Member], settings: Settings, wanted: dict[Slot, None]
) -> bool:
    """Whether the members are to meet anew: newcomers are ready, or hosts were taken away."""
    newcomers = [m for m in members if m.stage == Stage.READY and m.rank < 0 and m.slot in wanted]
    is_gathered = bool(newcomers) and (
        all(m.stage != Stage.STARTING for m in members)
        or now - min(m.since for m in newcomers) >= GATHER_SECONDS
    )
    if is_gathered:
        return True
    staying = sum(m.stage != Stage.STARTING and m.slot in wanted for m in members)
    leaving = any(m.stage == Stage.TRAINING and m.slot not in wanted for m in members)
    return leaving and staying >= settings.min_np


def _end_of_job(roster: Roster, settings: Settings, ready: Sequence[Member]) -> str:
    """Why the job cannot go on; empty when it can."""
    if roster.epoch == 0:
        is_hopeless = roster.given_up and not roster.members and not settings.may_grow
        return "no host is left" if is_hopeless and not _wanted_slots(roster) else ""
    # A worker that starts has no state, so it cannot take over.
    if not any(m.rank >= 0 for m in ready):
        return f"all ranks of epoch {roster.epoch} are lost, and with them the state of the job"
    if max(m.commit for m in ready) < roster.commit:
        return "all ranks that had the last commit are lost"
    if roster.causeless >= MAX_CAUSELESS:
        return f"the ranks have failed {MAX_CAUSELESS} times in a row, although none of them ended"
    return ""


def _too_few(now: float, roster: Roster, settings: Settings, ready: Sequence[Member]) -> str:
    """Why the job waits no longer for ranks; empty while it does."""
    if roster.halted_at is None or now - roster.halted_at <= settings.timeout:
        return ""
    there = f"{len(ready)} rank is" if len(ready) == 1 else f"{len(ready)} ranks are"
    return (
        f"{there} there, but --min-np is {settings.min_np}; waited {settings.timeout:g} s "
        "(--elastic-timeout) for more"
    )


def _choose(
    ready: Sequence[Member], wanted: dict[Slot, None], settings: Settings
) -> tuple[list[Member], tuple[int, ...]]:
    """The members of the next epoch, and the ready workers that are told to end.

    Those whose slots were taken away stay for one more epoch where too few are left. One of them
    stays where nobody else has the state; then there may be one more than --max-np.
    """
    in_order = sorted(ready, key=lambda m: (-m.commit, m.rank < 0, m.rank, m.worker))
    staying = [m for m in in_order if m.slot in wanted][: settings.max_np]
    others = [m for m in in_order if m not in staying]
    best = max((m.commit for m in ready), default=UNSYNCED)
    needed = max(settings.min_np - len(staying), int(all(m.commit != best for m in staying)))
    return staying + others[:needed], tuple(m.worker for m in others[needed:])


def _waits_for_starters(now: float, roster: Roster, chosen: Sequence[Member]) -> bool:
    """The first epoch is for all that were started; later ones do not wait for newcomers."""
    if roster.epoch > 0 or all(m.stage != Stage.STARTING for m in roster.members):
        return False
    return now - min(m.since for m in chosen) < PATIENCE_SECONDS


def _epoch_of(roster: Roster, chosen: Sequence[Member]) -> Epoch:
    """Members keep their numbers where they can; others take what is free, in the order in which
    they were started, which is that of the hosts."""
    size = len(chosen)
    numbers: dict[int, Member] = {}
    rest = []
    for m in sorted(chosen, key=lambda m: (m.rank < 0, m.rank, m.worker)):
        if 0 <= m.rank < size and m.rank not in numbers:
            numbers[m.rank] = m
        else:
            rest.append(m)
    free = (number for number in range(size) if number not in numbers)
    numbers.update(zip(free, rest, strict=True))
    best = max(m.commit for m in chosen)
    root = next(number for number in range(size) if numbers[number].commit == best)
    workers = tuple(numbers[number].worker for number in range(size))
    return Epoch(roster.epoch + 1, workers, root, best)
