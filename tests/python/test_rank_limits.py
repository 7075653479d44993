"""A limit of the system that a rank meets is an error that names it, and does no lasting harm."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from control_group import control_group

RunPython = Callable[..., subprocess.CompletedProcess[str]]

# No further thread or process may start from the moment on at which it is alone in its group.
WITHOUT_THREADS = """
import sys, time, mydist as md, torch
md.init()
md.shutdown()
group = {group!r}
open(group + "/cgroup.procs", "w").write("0")
running = open(group + "/pids.current").read()
open(group + "/pids.max", "w").write(running)
began = time.monotonic()
try:
    md.init()
except md.MydistError as error:
    print(error)
print(time.monotonic() - began < 1.0, md.is_initialized())
open(group + "/pids.max", "w").write("max")
md.init()
print(md.allreduce(torch.ones(1)).item())
"""


def test_a_thread_that_cannot_start_names_the_limit(run_python: RunPython) -> None:
    with control_group("pids.max", "max") as group:
        done = run_python(WITHOUT_THREADS.format(group=str(group.path)))
    assert done.returncode == 0, done.stderr
    text, state, result = done.stdout.splitlines()
    assert text == (
        "cannot start a thread for the engine: Resource temporarily unavailable. Check the limit "
        "on processes (ulimit -u)."
    )
    assert (state, result) == ("True False", "1.0")


WITHOUT_FILES = """
import os, resource, mydist as md, torch
md.init()
md.allreduce(torch.ones(1))
md.shutdown()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
md.init()
print(md.allreduce(torch.ones(1)).item())
"""


def test_one_rank_needs_no_descriptor(run_python: RunPython) -> None:
    done = run_python(WITHOUT_FILES)
    assert (done.returncode, done.stdout) == (0, "1.0\n"), done.stderr
