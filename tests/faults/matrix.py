"""The matrix: faults x places x collectives x planes, of which a seed draws a sample. Pure.

A cell is named "ACT/PLACE/COLLECTIVE/PLANE", where a place is a failpoint, "between" or "inside".
The seed also chooses the victim and how often it comes to its failpoint before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from faults.catalogue import (
    EXITED,
    KILLED,
    LAST,
    LEFT,
    NO_ANSWER,
    NOT_FINALIZED,
    PLANES,
    SHUTDOWN,
    Act,
    Collective,
    Fault,
    Phase,
    Plane,
    Point,
)

ACTS = (Act.KILL, Act.SEGV, Act.STOP, Act.RAISE, Act.LEAVE, Act.DELAY)
PLACES = (Phase.BETWEEN, Phase.INSIDE, *Point)
# Later than all ranks are ready, even if a step passes a failpoint twice.
_PASSES = range(32, 40)


def bound_of(act: Act) -> float:
    """Seconds within which all survivors are to report, beyond the wait of the settings."""
    return 0.3 if act is Act.STOP else 1.0


@dataclass(frozen=True)
class Place:
    """One cell of the matrix."""

    act: Act
    where: Phase | Point
    collective: Collective
    plane: Plane

    @property
    def name(self) -> str:
        """What `--cell` takes."""
        return "/".join((_KEYS[self.act], self.where.value, self.collective.value, self.plane.key))

    @classmethod
    def of(cls, name: str) -> Place:
        """The reverse of `name`. ValueError when there is no such cell."""
        for place in every_place():
            if place.name == name:
                return place
        raise ValueError(f"there is no cell {name!r}; expected ACT/PLACE/COLLECTIVE/PLANE")

    def exists(self) -> bool:
        """Whether there is such a thing."""
        at_point = isinstance(self.where, Point)
        if self.act is Act.DELAY and not at_point:
            return False  # A rank that is late between collectives is a row of the table.
        if self.where is Phase.INSIDE and not self.act.is_signal:
            return False
        if self.act is Act.STOP and self.where is Point.SHUTDOWN:
            return False  # The others leave, and mydistrun waits for the rank to go on.
        if self.collective is Collective.JOIN:
            return self.where is Phase.BETWEEN
        if self.where is Point.COPY_OUT:
            return self.collective is Collective.GROUPED
        if self.where is Point.COPY_IN:
            return self.collective in _COPIED
        return True

    def fault(self, seed: int) -> Fault:
        """What happens, with what the seed chooses."""
        chance = random.Random(f"{seed}/{self.name}")
        victim = chance.choice((0, LAST))
        if self.where is Point.COPY_IN and self.collective is Collective.BROADCAST:
            victim = 0  # The root alone copies.
        at_pass = 1 if self.where is Point.SHUTDOWN else chance.choice(_PASSES)
        errors, says, code, env = _EXPECTED[self.act]
        at_point = isinstance(self.where, Point)
        if at_point and self.act in (Act.LEAVE, Act.RAISE):
            # A rank that a collective waits for is lost; one that the others agree with has left.
            errors = ("PeerLostError", "AbortedError")
        if at_point and self.act is Act.LEAVE:
            says = rf"({EXITED} 0|{LEFT}|{NOT_FINALIZED})"
        if at_point and self.act is Act.RAISE:
            says = EXITED + rf" 1(.*\n)*?.*failpoint {self.where.value}"
        if self.where is Point.SHUTDOWN and self.act in (Act.LEAVE, Act.RAISE):
            says, code = "", 0  # All work is done, and the rank ends with 0.
        if self.where is Point.SHUTDOWN and self.act is Act.LEAVE and self.plane.ends_survivors:
            says, code = NOT_FINALIZED, 1  # mpirun takes that for a failure, and ends the others.
        return Fault(
            key=self.name,
            title=self.name,
            phase=Phase.AT_POINT if at_point else self.where,
            act=self.act,
            victim=victim,
            errors=errors,
            says=says,
            code=code,
            goal_s=bound_of(self.act),
            env=env,
            collective=self.collective,
            point=self.where if at_point else None,
            at_pass=at_pass,
        )


_KEYS = {
    Act.KILL: "kill",
    Act.SEGV: "segv",
    Act.STOP: "stop",
    Act.RAISE: "raise",
    Act.LEAVE: "leave",
    Act.DELAY: "delay",
}
_COPIED = (Collective.ALLREDUCE, Collective.GROUPED, Collective.BROADCAST)
_EXPECTED = {
    Act.KILL: (("PeerLostError",), KILLED + "SIGKILL", 137, {}),
    Act.SEGV: (("PeerLostError",), KILLED + "SIGSEGV", 139, {}),
    Act.STOP: (("CollectiveTimeoutError",), NO_ANSWER, 1, SHUTDOWN),
    Act.RAISE: (("AbortedError",), EXITED + r" 1(.*\n)*?.*broken on purpose", 1, {}),
    Act.LEAVE: (
        ("AbortedError",),
        rf"({EXITED} 0|{LEFT}).*, while other ranks still needed it",
        None,
        {},
    ),
    Act.DELAY: ((), "", 0, {}),
}


def every_place(planes: Sequence[Plane] = PLANES) -> Iterator[Place]:
    """The whole product, act by act and plane by plane."""
    for act, plane, where, collective in product(ACTS, planes, PLACES, Collective):
        place = Place(act, where, collective, plane)
        if place.exists():
            yield place


def draw(seed: int, count: int, planes: Sequence[Plane] = PLANES) -> list[Place]:
    """`count` places of each act on each plane; the same for the same seed."""
    drawn: list[Place] = []
    for (act, plane), group in groupby(every_place(planes), lambda p: (p.act, p.plane.key)):
        places = list(group)
        chance = random.Random(f"{seed}/{_KEYS[act]}/{plane}")
        drawn += chance.sample(places, min(count, len(places)))
    return drawn
