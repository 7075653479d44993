"""mydist in an MPI that mpi4py started, twice, with MPI in use before, between and after."""

import torch
from mpi4py import MPI  # Starts MPI: before mydist does.

import mydist as md

ONE = torch.ones(3)


def total() -> int:
    return int(MPI.COMM_WORLD.allreduce(1))


totals = [total()]
for comm in (MPI.COMM_WORLD, None):
    md.init(comm)
    totals.append(int(md.allreduce(ONE, op=md.Sum)[0]))
    md.shutdown()
    totals.append(total())
print(f"TOTALS {totals} finalized {MPI.Is_finalized()}", flush=True)
