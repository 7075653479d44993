"""init() with process sets, twice with the same objects; prints what every rank knows of them."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import mydist as md


def sets_of(kind: str) -> list[Any]:
    """What init() is given: lists of ranks, or communicators that differ from rank to rank."""
    if kind == "lists":
        return [md.ProcessSet([0, 1]), md.ProcessSet([2, 0])]
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    halves = world.Split(world.Get_rank() % 2, 0)
    some = world.Split(0 if world.Get_rank() in (1, 2) else MPI.UNDEFINED, 0)
    return [md.ProcessSet(halves), md.ProcessSet(some)]


def main() -> None:
    sets = sets_of(sys.argv[1])
    for _ in range(2):
        md.init(process_sets=sets)
        md.init(process_sets=sets)
        known = []
        for process_set in sets:
            total = 0
            if process_set.included():
                total = int(md.allreduce(torch.tensor([1]), op=md.Sum, process_set=process_set))
            known.append((process_set.process_set_id, process_set.ranks, total))
        try:
            md.init(process_sets=[md.ProcessSet([1])])
        except ValueError as error:
            assert "mydist is already initialized, without ProcessSet([1])" in str(error)
        else:
            raise AssertionError("init() took another set")
        everyone = md.allgather_object(known)
        if md.rank() == 0:
            print("SETS " + json.dumps(everyone), flush=True)
        if sys.argv[1] != "lists":
            for process_set in sets:
                md.remove_process_set(process_set)
            for process_set in sets:
                md.add_process_set(process_set)
        md.shutdown()
        for process_set in sets:
            try:
                assert process_set.process_set_id < 0
            except ValueError as error:
                assert "is not part of the job; add it first" in str(error)
            else:
                raise AssertionError(f"{process_set} outlives the job")


if __name__ == "__main__":
    main()
