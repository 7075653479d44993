"""A job of which one rank is killed: doomed.py RESULT_DIR VICTIM PHASE MOMENT LOOKS

PHASE "init" or "shutdown": the victim kills itself at the MOMENT-th function call or return inside
mydist of that phase. PHASE "work", or "train" for steps of an optimizer among it: a process beside
it kills it after it has begun MOMENT collectives and the other has looked LOOKS times at nothing.

Each other rank writes how it ended to RESULT_DIR/rank<r>.txt: an error, or "finished". Every rank
that comes so far writes to RESULT_DIR/arena<r>.txt what /proc calls the memory that it shares.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType

import torch
from multiproc.arena_memory import arenas_held_by
from multiproc.pretended_hosts import pretend_hosts

import mydist as md

# When nobody is to be killed meanwhile.
ROUNDS = 6
# Arguments: the pid, how many bytes to read, how many looks.
_KILLER = """
import os, sys
pid, moments, looks = map(int, sys.argv[1:])
while moments > 0:
    got = os.read(0, moments)
    moments -= len(got)
    if not got:
        sys.exit()  # It has come to its end.
while looks > 0:
    looks -= 1
os.kill(pid, 9)
"""

Tell = Callable[[], object]


@contextmanager
def killed_at_call(number: int) -> Iterator[None]:
    """SIGKILL to this process at the number-th call or return of mydist's Python functions."""
    left = number

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if str(frame.f_globals.get("__name__", "")).startswith("mydist"):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def killed_from_outside(moment: int, looks: int) -> Iterator[Tell]:
    """Gives what to call at each moment."""
    command = [sys.executable, "-S", "-c", _KILLER, str(os.getpid()), str(moment), str(looks)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as killer:
        assert killer.stdin is not None
        pipe = killer.stdin.fileno()
        yield lambda: os.write(pipe, b".")


def collectives() -> list[Callable[[], object]]:
    """Of all kinds, large enough that a kill finds the ranks inside them."""
    data = torch.ones(300_000)
    return [
        lambda: md.allreduce(data, name="sum"),
        lambda: md.allreduce_(data[:10], name="small"),
        lambda: md.allgather(data, name="gather"),
        lambda: md.broadcast(data, md.size() - 1, name="broadcast"),
        lambda: md.alltoall(data, name="alltoall"),
        lambda: md.reducescatter(data, name="scatter"),
        md.barrier,
    ]


def training() -> list[Callable[[], object]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 400)
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), gradient_as_buffer_view=True
    )
    return [lambda: model(torch.ones(2, 300)).sum().backward(), optimizer.step]


def work(tell: Tell, rounds: Iterable[int], trains: bool = False) -> None:
    calls = collectives() + (training() if trains else [])
    for _ in rounds:
        for call in calls:
            tell()
            call()
    md.barrier()


def launched_rank() -> int:
    """Before init()."""
    return int(os.environ.get("MYDIST_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


def live(folder: Path, victim: int, phase: str, moment: int, looks: int) -> None:
    rank = launched_rank()
    pretend_hosts()
    if rank == victim and phase == "init":
        with killed_at_call(moment):
            md.init()
    md.init()
    (folder / f"arena{rank}.txt").write_text("\n".join(arenas_held_by("self")))
    # The launcher ends the others soon after; they are to say first what they have seen.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # However late the kill comes, it is to come in the middle.
    rounds = count() if phase in ("work", "train") else range(ROUNDS)
    trains = phase == "train"
    if rank == victim and phase in ("work", "train"):
        with killed_from_outside(moment, looks) as tell:
            work(tell, rounds, trains)
    else:
        work(lambda: None, rounds, trains)
    if rank == victim and phase == "shutdown":
        with killed_at_call(moment):
            md.shutdown()
    md.shutdown()


def main() -> None:
    folder, victim, phase, moment, looks = sys.argv[1:]
    report = Path(folder) / f"rank{launched_rank()}.txt"
    try:
        live(Path(folder), int(victim), phase, int(moment), int(looks))
    except Exception as error:
        report.write_text(f"{type(error).__name__}: {error}")
        raise
    report.write_text("finished")


if __name__ == "__main__":
    main()
