"""Ranks that fail at chosen places of the engine: a few cells of the matrix of `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest
from deep import deep
from faults.catalogue import PLANES, Act, Collective, Phase, Point
from faults.checks import problems_of, times_to_report
from faults.matrix import ACTS, PLACES, Place, draw, every_place
from faults.run import run_once

LATE_S = 10.0  # The goals are in docs/reliability.md; this machine may be busy.


@pytest.mark.parametrize(
    "name",
    [
        "kill/copy_in/allreduce/frozen",
        "raise/copy_out/grouped_allreduce/gloo",
        "delay/callback/allgather/negotiated",
        deep("stop/negotiate/alltoall/mpi"),
        deep("leave/fuse/reducescatter/flat"),
        deep("segv/shutdown/broadcast/gloo"),
        deep("raise/negotiate/allreduce/negotiated"),
        deep("raise/copy_in/broadcast/flat"),
    ],
)
def test_the_others_say_what_is_true_and_in_time(name: str, tmp_path: Path) -> None:
    place = Place.of(name)
    fault = place.fault(seed=1)
    run = run_once(fault, place.plane, tmp_path)
    assert not (problems := problems_of(fault, place.plane, run)), "\n".join(problems)
    assert max(times_to_report(fault, run), default=0.0) < LATE_S


def test_a_seed_draws_the_same_cells_with_the_same_victims_again() -> None:
    first = [(place.name, place.fault(7)) for place in draw(7, 2)]
    assert first == [(place.name, place.fault(7)) for place in draw(7, 2)]
    assert first != [(place.name, place.fault(8)) for place in draw(8, 2)]
    assert len(first) == 2 * len(ACTS) * len(PLANES)
    assert {place.plane.key for place in draw(7, 1, PLANES[:1])} == {PLANES[0].key}


def test_the_matrix_has_every_fault_place_collective_and_plane() -> None:
    places = list(every_place())
    assert len({place.name for place in places}) == len(places)
    assert {place.act for place in places} == set(ACTS)
    assert {place.where for place in places} == set(PLACES)
    assert {place.collective for place in places} == set(Collective)
    assert {place.plane.key for place in places} == {plane.key for plane in PLANES}


@pytest.mark.parametrize(
    "name",
    [
        "kill/copy_out/allreduce/gloo",  # One tensor is not packed.
        "raise/inside/allreduce/gloo",  # Only a signal comes at any moment.
        "kill/reduce/join/gloo",
        "kill/reduce/allreduce/udp",
    ],
)
def test_a_cell_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="there is no cell"):
        Place.of(name)


def test_a_failpoint_is_that_of_the_victim_and_its_pass() -> None:
    gloo = next(plane for plane in PLANES if plane.key == "gloo")
    fault = Place(Act.LEAVE, Point.SHUTDOWN, Collective.ALLREDUCE, gloo).fault(3)
    assert fault.failpoint == "shutdown:1:exit" and fault.may_stay_silent
    assert Place(Act.KILL, Phase.INSIDE, Collective.ALLREDUCE, gloo).fault(3).failpoint == ""
