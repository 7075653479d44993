"""SIGQUIT: a rank tells what it does and goes on, unless the program has seen to the signal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Each part says what has been written when it is through.
PROGRAM = """
import faulthandler, os, signal, sys, time
import torch
import mydist as md

def quit_now():
    os.kill(os.getpid(), signal.SIGQUIT)

def say(text):
    print(text, os.path.exists("mydist_flight_recorder"), flush=True)

def in_a_job(tell):
    md.init()
    md.allreduce(torch.ones(2), name="x")
    quit_now()
    tell()
    md.shutdown()

signal.signal(signal.SIGQUIT, lambda number, frame: say("the program's own handler"))
in_a_job(lambda: None)
signal.signal(signal.SIGQUIT, signal.SIG_IGN)
in_a_job(lambda: say("ignored"))
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
with open("stacks", "w") as file:
    faulthandler.register(signal.SIGQUIT, file=file)
    in_a_job(lambda: say("faulthandler of the program " + str(os.path.getsize("stacks") > 0)))
    faulthandler.unregister(signal.SIGQUIT)

def await_dump():
    while not os.path.exists("mydist_flight_recorder/flight_recorder_rank0.json"):
        time.sleep(0.01)
    say("ours")

in_a_job(await_dump)
if (child := os.fork()) == 0:
    quit_now()
    os._exit(7)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
quit_now()
in_a_job(lambda: None)
print("end")
"""


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_who_handles_it(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "the program's own handler False",
        "ignored False",
        "faulthandler of the program True False",
        "ours True",
        "child 7",
        "end",
    ]
    assert "in quit_now" in ran.stderr and "in in_a_job" in ran.stderr
    assert "`python -m mydist.debug " in ran.stderr
