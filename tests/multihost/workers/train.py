"""Work for ranks on several hosts: train.py report | forever | fail

report   every collective once; rank 0 prints what all ranks saw as one JSON line
forever  allreduces until something breaks
fail     as forever, but the last rank ends with code 7
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed

import mydist as md

LISTEN, ESTABLISHED = 0x0A, 0x01
BIG_COUNT = 1 << 20
# torch documents TCPStore, but does not export it to type checkers.
distributed: Any = torch.distributed


def dotted(field: str) -> str:
    """The address of `0100007F:1F90`, a field of /proc/net/tcp, whose bytes are in host order."""
    return ".".join(str(byte) for byte in bytes.fromhex(field.partition(":")[0])[::-1])


def tcp_rows(state: int) -> list[tuple[str, str, str]]:
    """(local field, address of the peer, inode) of every IPv4 socket of this host in a state."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [(row[1], dotted(row[2]), row[9]) for row in rows if int(row[3], 16) == state]


def listening_addresses() -> list[str]:
    """Where somebody listens on this host, in any process but sshd (port 2222)."""
    found = {dotted(local) for local, _, _ in tcp_rows(LISTEN) if not local.endswith(":08AE")}
    if Path("/proc/self/net/tcp6").exists():
        lines = Path("/proc/self/net/tcp6").read_text().splitlines()[1:]
        rows = [line.split() for line in lines]
        found |= {"IPv6" for row in rows if int(row[3], 16) == LISTEN and row[1][-4:] != "08AE"}
    return sorted(found)


def own_connections() -> list[tuple[str, str]]:
    """(own address, peer's address) of every connection of this process, without repeats."""
    inodes = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except OSError:
            continue  # the descriptor that listed the directory
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    rows = tcp_rows(ESTABLISHED)
    return sorted({(dotted(local), peer) for local, peer, inode in rows if inode in inodes})


def check_collectives() -> None:
    """Every collective against what one process computes."""
    rank, size = md.rank(), md.size()
    total = size * (size + 1) // 2
    ramp = torch.arange(BIG_COUNT, dtype=torch.int64)
    assert torch.equal(md.allreduce(ramp * (rank + 1), op=md.Sum, name="big"), ramp * total)
    rows = torch.full((rank + 1, 2), float(rank))
    gathered = md.allgather(rows)
    assert gathered.shape == (total, 2)
    assert gathered[:, 0].tolist() == [float(r) for r in range(size) for _ in range(r + 1)]
    for root in range(size):
        sent = md.broadcast(torch.tensor([rank, 7]), root_rank=root)
        assert sent.tolist() == [root, 7]
    swapped = md.alltoall(
        torch.arange(size) + 100 * rank, splits=torch.ones(size, dtype=torch.int32)
    )
    swapped = swapped[0] if isinstance(swapped, tuple) else swapped
    assert swapped.tolist() == [100 * peer + rank for peer in range(size)]
    part = md.reducescatter(torch.arange(size * 3.0).reshape(size, 3), op=md.Sum)
    assert part.tolist() == [[size * (3.0 * rank + column) for column in range(3)]]
    md.barrier()


def is_started_directly() -> bool:
    """Under mpirun there is no MASTER_ADDR."""
    return "OMPI_COMM_WORLD_RANK" not in os.environ


def check_master() -> None:
    """MASTER_ADDR and MASTER_PORT serve torch.distributed code in the same script."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(address, port, md.size(), is_master=md.rank() == 0)
    store.set(f"rank {md.rank()}", "here")
    for rank in range(md.size()):
        assert store.get(f"rank {rank}") == b"here"
    md.barrier()


def report() -> None:
    before = listening_addresses()
    md.init()
    check_collectives()
    seen: dict[str, Any] = {
        "host": os.uname().nodename,
        "place": [md.rank(), md.size(), md.local_rank(), md.local_size()],
        "cross": [md.cross_rank(), md.cross_size()],
        "listening": before,
        "connections": own_connections(),
    }
    everyone = md.allgather_object(seen)
    if is_started_directly():
        check_master()
    if md.rank() == 0:
        print("REPORT " + json.dumps(everyone), flush=True)
    md.shutdown()


def forever(fail: bool) -> None:
    md.init()
    md.allreduce(torch.ones(4), name="warm")
    print(f"READY {os.getpid()}", flush=True)
    while True:
        if fail and md.rank() == md.size() - 1:
            print("the disk is full", file=sys.stderr, flush=True)
            sys.exit(7)
        md.allreduce(torch.ones(1000), name="step")


def main() -> None:
    mode = sys.argv[1]
    if mode == "report":
        report()
    else:
        forever(fail=mode == "fail")


if __name__ == "__main__":
    main()
