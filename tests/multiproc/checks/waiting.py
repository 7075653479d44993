"""Waiting: a caller that waits drives the engine; an idle engine sleeps."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import torch

import mydist as md
from multiproc.meeting import meet
from multiproc.reference import expect_equal
from multiproc.registry import NotHereError, check
from mydist import _C


@check()
def several_threads_may_wait_at_once() -> None:
    failures: list[str] = []

    def reduce_repeatedly(caller: int) -> None:
        for i in range(50):
            tensor = torch.full((3,), float(md.rank() + i))
            if (i + md.rank()) % 2 == 0:
                md.allreduce_(tensor, op=md.Sum, name=f"caller.{caller}")
            else:
                md.synchronize(md.allreduce_async_(tensor, op=md.Sum, name=f"caller.{caller}"))
            expected = float(md.size() * i + md.size() * (md.size() - 1) // 2)
            if not torch.equal(tensor, torch.full((3,), expected)):
                failures.append(f"caller {caller}, step {i}: {tensor}, expected {expected}")

    callers = [threading.Thread(target=reduce_repeatedly, args=(c,)) for c in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures, failures


@check()
def denormals_survive_whoever_computes() -> None:
    tiny = torch.full((5,), 2.0**-140)
    expected = torch.full((5,), 2.0**-140 * md.size())
    torch.set_flush_denormal(md.rank() % 2 == 0)
    try:
        md.allreduce_(tiny, op=md.Sum, name="tiny")
    finally:
        torch.set_flush_denormal(False)
    expect_equal(tiny, expected)


@check()
def the_callers_inference_mode_does_not_mark_outputs() -> None:
    with torch.inference_mode():
        rows = md.allgather(torch.ones(2), name="rows")
    assert not rows.is_inference()


def _idle_wakeups(seconds: float) -> int:
    """Of this rank's engine, while this thread does nothing."""
    before = md.stats()["wakeups"]
    threading.Event().wait(seconds)
    return md.stats()["wakeups"] - before


def _others() -> dict[str, dict[str, str]]:
    """What the kernel says of each other thread of this process, by its name and number."""
    found: dict[str, dict[str, str]] = {}
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) == threading.get_native_id():
            continue
        lines = (task / "status").read_text("ascii").splitlines()
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        found[f"{fields['Name']} {task.name}"] = fields
    return found


def _await_quiet() -> None:
    """Returns when what this rank did before is over: nothing has woken its engine for a while, and
    no thread still waits for a core on its way to sleep, as on a busy machine.
    """
    deadline = time.monotonic() + 10
    while True:
        wakeups = _idle_wakeups(0.3)
        awake = [name for name, fields in _others().items() if not fields["State"].startswith("S")]
        if wakeups == 0 and not awake:
            return
        assert time.monotonic() < deadline, f"the engine woke {wakeups} times; awake: {awake}"


def _finish_on_the_engines_thread() -> None:
    """Leaves the engine's thread without a deadline. A thread that slept while a caller drove its
    work to the end has the deadline of that work still, and wakes once more for it.
    """
    handle = md.allreduce_async(torch.zeros(1), name="last")
    while not md.poll(handle):
        time.sleep(0.001)
    md.synchronize(handle)


def _sleeps() -> dict[str, int]:
    """How often each other thread of this process has gone to sleep."""
    return {name: int(fields["voluntary_ctxt_switches"]) for name, fields in _others().items()}


@check(min_size=2)
def only_gloos_own_thread_does_not_interrupt_others() -> None:
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        raise NotHereError("the tests run with another policy")
    policies = [os.sched_getscheduler(int(task)) for task in os.listdir("/proc/self/task")]
    assert policies.count(os.SCHED_BATCH) == (_C.backend_name() == "gloo"), policies


@check(min_size=2)
def an_idle_second_wakes_only_the_heartbeat() -> None:
    """The engine sleeps on, as it counts itself, and, as the kernel counts, the other threads of
    ours: the watcher of other ranks, the forwarder, those that wait for a peer's connection. The
    thread for heartbeats wakes up once.
    """
    shares_memory = md.explain().facts["data path"].choice.startswith("shared memory")
    is_one_host = md.local_size() == md.size()
    if _C.backend_name() == "mpi" and not (shares_memory and is_one_host):
        raise NotHereError("MPI can only be polled")
    with tempfile.TemporaryDirectory() as own:
        directory = Path(md.broadcast_object(own, root_rank=0))
        _finish_on_the_engines_thread()
        _await_quiet()
        meet(directory, "quiet")
        begin, before = time.monotonic(), _sleeps()
        # Longer than the second between two heartbeats: a busy machine wakes their thread late.
        wakeups = _idle_wakeups(1.5)
        after, seconds = _sleeps(), time.monotonic() - begin
        meet(directory, "measured")
        md.barrier()  # All have seen the files.
    assert wakeups == 0, wakeups
    woken = {thread: after[thread] - before.get(thread, 0) for thread in after}
    (pulse,) = (woken.pop(thread) for thread in list(woken) if thread.startswith("mydist-pulse"))
    assert 0 < pulse <= seconds + 1, (pulse, seconds)
    restless = {thread: count for thread, count in woken.items() if count > 0}
    if _C.backend_name() == "gloo" and len(restless) == 1:
        # Gloo's own, which looks at its sockets once in 10 ms.
        ((thread, count),) = restless.items()
        assert not thread.startswith("mydist-") and count < 100 * seconds + 20, restless
        return
    assert not restless, restless
