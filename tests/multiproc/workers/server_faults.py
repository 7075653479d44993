"""Faults of the parameter server and of its workers: server_faults.py SCENARIO FOLDER

Each rank writes a row ready<rank> with its pid, those of the servers and the pieces that they hold,
and learned<rank> with what became of its calls.
The test does to processes what no rank can do to itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from multiproc.watched_job import write_row
from torch.utils.data import DataLoader

import mydist as md
from mydist.ps import job_servers

FOLDER = Path(sys.argv[2])
ONES = torch.ones(3000)


def wait_for(name: str) -> None:
    deadline = time.monotonic() + 45
    while not (FOLDER / name).exists():
        assert time.monotonic() < deadline, f"no {name}"
        time.sleep(0.01)


def told(call: Callable[[], object]) -> dict[str, Any]:
    """What the call raised, and when."""
    row: dict[str, Any] = {"error": ""}
    try:
        call()
    except Exception as error:
        row = {"error": type(error).__name__, "text": str(error)}
        row["failure"] = error.failure if isinstance(error, md.MydistError) else {}
    return row | {"at": time.monotonic()}


def learned(**rows: object) -> None:
    write_row(FOLDER, f"learned{md.rank()}", rows)


def ready(*tables: Any) -> None:
    texts = [text for text, _ in job_servers.current().client.connections()]
    servers = [int(text.rpartition("pid ")[2].rstrip(")")) for text in texts]
    pieces = [sum(table.explain()[server][1] for table in tables) for server in range(len(servers))]
    row = {"pid": os.getpid(), "servers": servers, "pieces": pieces}
    write_row(FOLDER, f"ready{md.rank()}", row)


def raises(call: Callable[[], object], part: str) -> None:
    row = told(call)
    assert row["error"] == "ValueError" and part in row["text"], row


# --- Without harm.


def ports() -> list[int]:
    """Of the servers."""
    started = os.environ.get("MYDIST_SERVER_ADDRESSES")
    if started:
        return [address[2] for address in job_servers.parse_addresses(started)]
    server = job_servers.current().server
    mine = server.address()[2] if server is not None else 0
    return [port for port in md.allgather_object(mine) if port]


def strangers() -> None:
    """What is no worker of the job is turned away."""
    table = md.ps.Table("stranger", ONES, md.ps.Add())
    if md.rank() == 0:
        for words in (b"GET / HTTP/1.0\r\n\r\n" * 8, os.urandom(100_000), b""):
            with socket.create_connection(("127.0.0.1", ports_of_servers[0])) as connection:
                connection.settimeout(5)
                try:
                    connection.sendall(words)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(100):
                        pass
                except OSError:
                    pass
    assert table.push_pull(ONES)[0] == 2
    table.close()


def cut_connections() -> int:
    """Those to servers over TCP; how many."""
    cut = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with connection:
            if connection.family != socket.AF_INET:
                continue
            try:
                is_of_server = connection.getpeername()[1] in ports_of_servers
            except OSError:
                continue
            if is_of_server:
                connection.shutdown(socket.SHUT_RDWR)
                cut += 1
    return cut


def broken_connections() -> None:
    """Each push is applied once."""
    large = torch.ones(500_000)
    table = md.ps.Table("broken", torch.zeros(500_000), md.ps.Add(), md.ps.Async())
    cut = 0
    for _ in range(4):
        handles = [table.push_async(large) for _ in range(3)]
        cut += cut_connections()
        for handle in handles:
            md.synchronize(handle)
    assert cut > 0 or os.environ["MYDIST_SHARED_MEMORY"] == "1"
    md.barrier()
    assert table.pull().unique().tolist() == [12.0 * md.size()]
    table.close()


def children() -> None:
    """A child can use no table, and its end is not the rank's."""
    table = md.ps.Table("fork", torch.zeros(10), md.ps.Add())
    child = os.fork()
    if child == 0:
        raises(lambda: table.push(torch.ones(10)), f"is a child of rank {md.rank()} ")
        raises(lambda: md.ps.Table("new", torch.zeros(1), md.ps.Add()), "is a child of rank")
        sys.exit(7)  # With all that Python does at its end.
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    loader = DataLoader([0], num_workers=1, collate_fn=lambda _: table.pull())
    raises(lambda: list(loader), "is a child of rank")
    assert table.push_pull(torch.ones(10)).tolist() == [1.0] * 10
    table.close()


def ctrl_c() -> None:
    """The call goes on, although the program has let go of its tensors."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    count = 2_000_000
    table = md.ps.Table("interrupted", torch.zeros(count), md.ps.Add())
    if md.rank() == 0:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            table.push_pull(torch.ones(count))
            raise AssertionError("it did not wait")
        except KeyboardInterrupt:
            pass
        reused = [torch.full((count,), 7.0) for _ in range(3)]
        md.barrier()
        assert table.pull().unique().tolist() == [1.0]
        assert all(bool((tensor == 7).all()) for tensor in reused)
    else:
        md.barrier()
        table.push(torch.ones(count))
    table.close()


def names() -> None:
    """A name, and what is closed."""
    table = md.ps.Table("name", torch.zeros(3), md.ps.Add())
    raises(lambda: md.ps.Table("name", torch.zeros(3), md.ps.Add()), "have a table of this name")
    raises(lambda: md.ps.RowTable("name", 5, 3, md.ps.Add()), "RowTable 'name': ranks [0, 1")
    table.close()
    for call in (lambda: table.push(torch.ones(3)), table.pull, table.close, table.stats):
        raises(call, "of table 'name': the table has been closed")
    table = md.ps.Table("name", torch.ones(4), md.ps.Add())
    assert table.pull().tolist() == [1.0] * 4


def process_sets() -> None:
    """One set does not notice that a worker of the other ends early."""
    sets = [md.add_process_set([0, 1]), md.add_process_set([2])]
    own = sets[md.rank() // 2]
    table = md.ps.Table("set", torch.zeros(2), md.ps.Add(), process_set=own)
    if md.rank() == 1:
        table.finish()
    else:
        for step in range(3):
            assert table.push_pull(torch.ones(2)).tolist() == [step + 1.0] * 2
    md.barrier()
    for each in sets:
        md.remove_process_set(each)


def another_job() -> None:
    """The second init() knows nothing of the tables of the first."""
    first = md.ps.Table("again", torch.zeros(5), md.ps.Add())
    first.push_pull(torch.ones(5))
    md.shutdown()
    raises(first.pull, "pull of table 'again': mydist.shutdown() ended the job that had the table")
    md.init()
    raises(first.pull, "mydist.shutdown() ended the job that had the table")
    second = md.ps.Table("again", torch.zeros(7), md.ps.Add(), md.ps.SSP(1))
    assert second.push_pull(torch.ones(7))[0] >= 1
    ports_of_servers[:] = ports()


def leave_one_by_one() -> None:
    """Rank 0 leaves first, its process last; the others without shutdown(), amid calls."""
    table = md.ps.Table("last", torch.zeros(3000), md.ps.Add())
    table.push_pull(ONES)
    learned(left=time.monotonic())
    if md.rank() == 0:
        md.shutdown()
        write_row(FOLDER, "over0", {"at": time.monotonic()})
        return
    begin = time.monotonic()
    while time.monotonic() < begin + 0.5:
        table.push_pull(ONES)
        if md.rank() == 1:
            time.sleep(0.01)
    write_row(FOLDER, f"over{md.rank()}", {"at": time.monotonic()})
    for _ in range(20):
        table.push_pull_async(torch.ones(3000))


ports_of_servers: list[int] = []


def unharmed() -> None:
    md.init()
    md.ps.Table("first", torch.zeros(1), md.ps.Add())
    ports_of_servers[:] = ports()
    steps = [names, children, ctrl_c, strangers, broken_connections, another_job]
    if md.size() == 3:
        steps.append(process_sets)
    for step in steps:
        step()
        md.barrier()
    leave_one_by_one()


# --- With harm.


def server_lost() -> None:
    """One is killed while rank 0 waits for it; the others call it later."""
    md.init()
    tables = {
        name: md.ps.Table(name, torch.zeros(count), md.ps.Add(), kind)
        for name, count, kind in (("fc", 3 << 20, md.ps.Sync()), ("emb", 1 << 20, md.ps.SSP(1)))
    }
    rows = md.ps.RowTable("rows", 1000, 4, md.ps.Add())  # Async.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Each is to say first what it has seen.
    ready(*tables.values())
    waits = tables["fc"].push_pull_async(torch.ones(3 << 20)) if md.rank() == 1 else 0
    if waits:
        first = told(lambda: md.synchronize(waits))
    else:
        wait_for("killed")
        first = told(lambda: tables["fc"].push_pull(torch.ones(3 << 20)))
    ssp = told(lambda: tables["emb"].push_pull(torch.ones(1 << 20)))
    learned(first=first, ssp=ssp, later=told(lambda: rows.pull(torch.arange(1000))))
    if first["error"]:
        raise md.PeerLostError(first["text"])


def worker_lost() -> None:
    """The last rank is killed while the others wait for it in a Sync table."""
    md.init()
    kinds = {
        "sync": md.ps.Sync(),
        "backup": md.ps.Sync(backup=1),
        "ssp": md.ps.SSP(1),
        "async": md.ps.Async(),
    }
    tables = {
        name: md.ps.Table(name, torch.zeros(9), md.ps.Add(), kind) for name, kind in kinds.items()
    }
    last = md.size() - 1
    for table in tables.values():
        table.push_pull(torch.ones(9))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if md.rank() == last:
        ready()
        time.sleep(60)
    handle = tables["sync"].push_pull_async(torch.ones(9))
    ready()
    lost = told(lambda: md.synchronize(handle))
    others = {
        name: told(lambda table=tables[name]: [table.push_pull(torch.ones(9)) for _ in range(5)])
        for name in ("backup", "ssp", "async")
    }
    learned(sync=lost, later=told(tables["sync"].pull), **others)
    wait_for("enough")


def stalled() -> None:
    """What is slow or stopped for a while does no harm; what stays so ends the wait."""
    md.init()
    ssp = md.ps.Table("ssp", torch.zeros(9), md.ps.Add(), md.ps.SSP(1))
    sync = md.ps.Table("sync", torch.zeros(9), md.ps.Add())
    kinds = {"async": md.ps.Async(), "ssp": md.ps.SSP(1), "sync": md.ps.Sync()}
    if md.rank() == 1:
        wait_for("declared by one")
    large = {
        name: md.ps.Table(f"large {name}", torch.zeros(600_000), md.ps.Add(), kind)
        for name, kind in kinds.items()
    }
    if md.rank() == 0:
        wait_for("slow enough")
        slow = told(lambda: [sync.push_pull(torch.ones(9)), ssp.push(torch.ones(9))])
    else:
        handle = sync.push_pull_async(torch.ones(9))
        ssp.push(torch.ones(9))
        slow = told(lambda: [ssp.push_pull(torch.ones(9)), md.synchronize(handle)])
    md.barrier()
    ready(*large.values())

    def call_all() -> dict[str, Any]:
        ones = torch.ones(600_000)
        handles = {name: table.push_pull_async(ones) for name, table in large.items()}
        return {name: told(lambda h=h: md.synchronize(h)) for name, h in handles.items()}

    wait_for("stopped")
    write_row(FOLDER, f"short{md.rank()}", {"slow": slow, **call_all()})
    wait_for("stopped again")
    begin = time.monotonic()
    learned(**call_all(), seconds=time.monotonic() - begin)
    wait_for("enough")
    os._exit(0)


def failing() -> None:
    """Rank 0, whose process has a server, raises an exception while the others wait for it."""
    md.init()
    table = md.ps.Table("fc", torch.zeros(9), md.ps.Add())
    table.push_pull(torch.ones(9))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    if md.rank() == 0:
        wait_for("ready1")
        wait_for("ready2")
        raise RuntimeError("broken on purpose")
    lost = told(lambda: table.push_pull(torch.ones(9)))
    learned(lost=lost)
    if lost["error"]:
        raise md.AbortedError(lost["text"])


def slow_server() -> None:
    """1 GiB is pushed to a server that is stopped now and then; memory stays as it is."""
    md.init()
    count = 16 << 20
    table = md.ps.Table("large", torch.zeros(count), md.ps.Add(), md.ps.Async())
    gradient = torch.ones(count)
    table.push(gradient)
    ready()
    wait_for("stopped")
    before = resident_mib()
    handles = [table.push_async(gradient) for _ in range(16)]
    most = before
    while not all(md.poll(handle) for handle in handles):
        most = max(most, resident_mib())
        time.sleep(0.005)
    for handle in handles:
        md.synchronize(handle)
    learned(grown=most - before, value=float(table.pull()[-1]))
    wait_for("enough")


def far_ahead() -> None:
    """Rank 0 pushes 32 gradients of 4 MiB before rank 1 pushes the first."""
    md.init()
    count, steps = 1 << 20, 32
    table = md.ps.Table("ahead", torch.zeros(count), md.ps.Add())
    other = md.ps.Table("other", torch.zeros(9), md.ps.Add())
    gradient = torch.ones(count)
    table.push_pull(gradient)
    ready()
    handles = []
    if md.rank() == 0:
        handles = [table.push_async(gradient) for _ in range(steps)]
        write_row(FOLDER, "ahead", {})
    assert other.push_pull(torch.ones(9))[0] == 1  # It waits behind none of them.
    if md.rank() == 1:
        wait_for("enough")
        handles = [table.push_async(gradient) for _ in range(steps)]
    for handle in handles:
        md.synchronize(handle)
    waited = md.stats()["ps_wait_us"] / 1e6
    learned(value=table.pull().unique().tolist(), waited=waited)


def resident_mib() -> float:
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


if __name__ == "__main__":
    globals()[sys.argv[1]]()
