"""Handles: each is good for one synchronize, whatever becomes of the collective."""

from __future__ import annotations

import gc
import subprocess
import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch

import mydist as md

pytestmark = pytest.mark.usefixtures("job")

RunPython = Callable[[str], subprocess.CompletedProcess[str]]


def completed(handle: int) -> bool:
    """Waits, without using the handle up, until it is complete."""
    deadline = time.monotonic() + 30
    while not md.poll(handle):
        assert time.monotonic() < deadline
    return True


def test_handles_are_never_reused() -> None:
    seen = set()
    for _ in range(100):
        handle = md.allgather_async(torch.ones(1))
        md.synchronize(handle)
        seen.add(handle)
    assert len(seen) == 100


def test_handles_outlive_shutdown() -> None:
    handle = md.allreduce_async(torch.ones(2))
    completed(handle)
    md.shutdown()
    assert md.synchronize(handle).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match=r"call mydist\.init\(\)"):
        md.allreduce_async(torch.ones(2))


def test_tensors_are_released_once_synchronized() -> None:
    tensor = torch.ones(5)
    gone = weakref.ref(tensor)
    handle = md.allreduce_async(tensor)
    result = md.synchronize(handle)
    del tensor
    gc.collect()
    assert gone() is None
    kept = weakref.ref(result)
    del result
    gc.collect()
    assert kept() is None


def test_threads_may_wait_at_once() -> None:
    results: dict[int, list[float]] = {}

    def work(number: int) -> None:
        for i in range(20):
            out = md.allreduce(torch.full((3,), float(number)), name=f"thread.{number}.{i}")
            results[number] = out.tolist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == {number: [float(number)] * 3 for number in range(4)}


def test_a_handle_waited_for_by_two_threads_serves_one() -> None:
    handle = md.allreduce_async(torch.ones(1 << 20))
    outcomes: list[str] = []

    def work() -> None:
        try:
            outcomes.append(f"{md.synchronize(handle).sum().item():.0f}")
        except ValueError as error:
            outcomes.append(str(error)[:6])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(outcomes) == ["1048576", "handle"]


def test_ctrl_c_interrupts_a_wait_and_the_handle_stays_good(run_python: RunPython) -> None:
    # Half a group never becomes ready, so the wait can only end by the signal.
    done = run_python(
        "import os, signal, threading, mydist as md, torch\n"
        "from mydist import _C\n"
        # Ignored in what a shell without job control starts in the background.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "md.init()\n"
        "def enqueue(name):\n"
        "    r = _C.GradientReducer(1, 1.0, 1.0, 0, 1, 0)\n"
        "    p = torch.nn.Parameter(torch.ones(2))\n"
        "    r.add_parameter(p, name, 'pair', 2)\n"
        "    (p * 3).sum().backward()\n"
        "    return r, p\n"
        "first, p = enqueue('a')\n"
        "try:\n"
        "    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    first.synchronize()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', first.pending())\n"
        "second, q = enqueue('b')\n"
        # The two wait for each other.
        "other = threading.Thread(target=second.synchronize); other.start()\n"
        "first.synchronize(); other.join()\n"
        "print(p.grad.tolist(), first.pending())\n"
    )
    assert done.stdout.splitlines() == ["interrupted ['a']", "[3.0, 3.0] []"], done.stderr
