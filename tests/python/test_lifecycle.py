"""init, shutdown, and the questions about a job of one rank."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mydist as md
from mydist.job.names import resolve_name

RunPython = Callable[[str], subprocess.CompletedProcess[str]]


class Communicator:
    """What init() uses of an mpi4py communicator."""

    def __init__(self, size: int) -> None:
        self._size = size

    def Get_size(self) -> int:
        return self._size


@pytest.mark.usefixtures("job")
def test_a_job_of_one_rank_knows_itself() -> None:
    assert md.is_initialized()
    assert (md.rank(), md.size()) == (0, 1)
    assert (md.local_rank(), md.local_size()) == (0, 1)
    assert (md.cross_rank(), md.cross_size()) == (0, 1)
    assert md.is_homogeneous() is True
    assert md.mpi_threads_supported() is False
    assert md.global_process_set.ranks == [0]
    assert md.global_process_set.process_set_id == 0
    assert md.global_process_set.included() is True


@pytest.mark.usefixtures("job")
def test_init_again_changes_nothing() -> None:
    handle = md.allreduce_async(torch.ones(2), name="kept")
    md.init()
    md.init(comm=[0])
    assert md.synchronize(handle).tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize("comm", [None, [0], (0,), range(1), Communicator(1)])
def test_init_accepts_all_ranks(comm: object) -> None:
    md.init(comm)
    assert md.size() == 1
    md.shutdown()


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize(
    ("comm", "error", "text"),
    [
        ([0, 1], ValueError, r"comm is ranks \[0, 1\], but the job has ranks 0 to 0"),
        ([], ValueError, r"comm is empty, expected the ranks that form the job"),
        (
            [0, 0],
            ValueError,
            r"comm is \[0, 0\], expected the ranks in ascending order, each of th",
        ),
        (Communicator(3), ValueError, r"a communicator of 3 ranks, but the job has ranks 0 to 0"),
        ("0", TypeError, r"comm is '0' \(str\), expected None, a list of ranks or an mpi4py"),
        ([0.0], TypeError, r"an item of comm is 0\.0 \(float\), expected a rank"),
    ],
)
def test_init_refuses_other_comm(comm: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        md.init(comm)
    assert not md.is_initialized()


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize(
    ("sets", "error", "text"),
    [
        ("static", ValueError, r"process_sets is 'static', expected a list of ProcessSet, 'dyn"),
        (3, TypeError, r"process_sets is 3 \(int\), expected a list of ProcessSet"),
        ([[0]], TypeError, r"process_sets\[0\] is \[0\] \(list\), expected a ProcessSet; make one"),
        (
            [md.ProcessSet([0])],
            ValueError,
            r"ranks \[0\] are those of the global process set, id 0",
        ),
        ([md.ProcessSet([0, 1])], ValueError, r"contains rank 1, but the job has ranks 0 to 0"),
        ([md.global_process_set], ValueError, r"init: ProcessSet\(process_set_id=0\) is already"),
    ],
)
def test_init_refuses_wrong_process_sets(sets: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        md.init(process_sets=sets)
    assert not md.is_initialized()


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize("sets", ["dynamic", [], (), None])
def test_init_accepts_no_process_sets(sets: object) -> None:
    md.init(process_sets=sets)
    assert md.allreduce(torch.ones(1), process_set=md.global_process_set).item() == 1.0
    md.shutdown()


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MYDIST_FUSION_THRESHOLD_MB", "many"),
        ("MYDIST_CHECK_CONSISTENCY", "-2"),
        ("MYDIST_LOG_LEVEL", "loud"),
        ("MYDIST_CONTROLLER", "nccl"),
    ],
)
def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=rf"{variable}=.?{value}.*expected"):
        md.init()
    assert not md.is_initialized()


def living_threads() -> int:
    """Without those that are ending: the kernel lists them for a moment after they are joined."""
    is_exiting = 4  # PF_EXITING, see proc(5).
    count = 0
    for stat in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # It has ended since.
            count += not int(stat.read_text().rpartition(")")[2].split()[6]) & is_exiting
    return count


@pytest.mark.usefixtures("no_job")
def test_init_and_shutdown_fifty_times_leaves_nothing_open() -> None:
    def cycle() -> None:
        md.init()
        assert md.allreduce(torch.full((3,), 2.0)).tolist() == [2.0, 2.0, 2.0]
        md.shutdown()

    cycle()
    open_files, threads = len(os.listdir("/proc/self/fd")), living_threads()
    for _ in range(50):
        cycle()
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert living_threads() == threads


@pytest.mark.usefixtures("no_job")
def test_automatic_names_start_again_with_every_init() -> None:
    for _ in range(2):
        md.init()
        assert resolve_name("allreduce", None) == "allreduce.noname.1"
        assert resolve_name("broadcast", None) == "broadcast.noname.1"
        assert resolve_name("allreduce", None) == "allreduce.noname.2"
        md.shutdown()


@pytest.mark.usefixtures("job")
def test_stats_count_what_was_reduced() -> None:
    before = md.stats()
    md.allreduce(torch.ones(1000))
    after = md.stats()
    assert after["tensors"] - before["tensors"] == 1
    assert after["tensor_bytes"] - before["tensor_bytes"] == 4000
    assert after["control_messages_sent"] == 0


@pytest.mark.usefixtures("job")
def test_a_timeline_is_valid_json_with_the_tensor_in_it(tmp_path: Path) -> None:
    path = tmp_path / "time line.json"
    md.start_timeline(path)
    md.allreduce(torch.ones(4), name="watched")
    md.stop_timeline()
    md.allreduce(torch.ones(4), name="unwatched")
    names = [
        row["args"]["name"]
        for row in json.loads(path.read_text())
        if row["ph"] == "M" and row["name"] == "thread_name"
    ]
    assert any("watched" in name for name in names)
    md.shutdown()
    assert "unwatched" not in path.read_text()


@pytest.mark.usefixtures("job")
def test_start_timeline_wants_a_path() -> None:
    with pytest.raises(TypeError, match=r"file_path is 3 \(int\), expected a str or path"):
        md.start_timeline(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="file_path is empty, expected the path of a file"):
        md.start_timeline("")


@pytest.mark.parametrize("ending", ["", "raise SystemExit(7)", "1 / 0", "md.shutdown()"])
def test_exit_without_shutdown_keeps_the_exit_code(run_python: RunPython, ending: str) -> None:
    done = run_python(
        "import mydist as md, torch\n"
        "md.init()\n"
        "md.allreduce(torch.ones(3))\n"
        "left = md.allreduce_async(torch.ones(1 << 20))\n"
        "print('ready')\n" + ending
    )
    expected = {"raise SystemExit(7)": 7, "1 / 0": 1}.get(ending, 0)
    assert (done.returncode, done.stdout) == (expected, "ready\n"), done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (ending == "1 / 0")


# A thread that is in a collective again and again, or in one that no engine ends, at the very end.
IN_A_COLLECTIVE = """
import threading, mydist as md, torch
md.init()
def work():
    data = torch.ones(1000)  # torch's own calls may terminate such a thread.
    while True:
        md.allreduce_(data)
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
md.allreduce(torch.ones(3))
print("ready")
"""
# What the program itself does at its end comes before or after mydist does.
AT_EXIT = """
import atexit, sys, mydist as md, torch
class Late:
    def __del__(self):
        try:
            md.allreduce(torch.ones(1))
        except ValueError:
            print("refused")
        md.shutdown()
        print("left")
def last():
    print("last")
    1 / 0
atexit.register(last)
md.init()
atexit.register(lambda: print(md.allreduce(torch.ones(1)).item()))
sys.late = Late()  # Goes when Python has ended the threads.
"""


@pytest.mark.parametrize("threads_end", [False, True])
def test_a_thread_in_a_collective_does_not_keep_the_exit(
    run_python: RunPython, threads_end: bool
) -> None:
    ending = "import sys; sys.exit(5)" if threads_end else ""
    began = time.monotonic()
    done = run_python(IN_A_COLLECTIVE + ending)
    assert (done.returncode, done.stdout) == (5 if threads_end else 0, "ready\n"), done.stderr
    assert "Fatal Python error" not in done.stderr and "terminate" not in done.stderr
    assert time.monotonic() - began < 30


def test_exceptions_at_exit_end_where_they_are_raised(run_python: RunPython) -> None:
    done = run_python(AT_EXIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["1.0", "last"], done
    # Python may have forgotten the modules by then.
    assert done.stdout.splitlines()[2:] in (["refused", "left"], []), done
    assert done.stderr.count("ZeroDivisionError") == 1, done.stderr


# What is pending, blocked, ignored and handled, before and after; the last ones are libc's own. The
# one handler that init() adds is for SIGQUIT, where the program has none.
CHANGES_NO_SIGNAL = """
import signal, torch
for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGPIPE, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
def signals():
    rows = [line.split() for line in open("/proc/self/status") if line.startswith("Sig")]
    others = ((1 << 31) - 1) & ~(1 << (signal.SIGQUIT - 1))
    return {row[0]: int(row[1], 16) & others for row in rows if row[0] != "SigQ:"}
before = signals()
import mydist as md
md.init()
md.allreduce(torch.ones(2))
assert signals() == before, (before, signals())
md.shutdown()
assert signals() == before, (before, signals())
"""


def test_the_signals_of_the_program_stay_as_they_are(run_python: RunPython) -> None:
    done = run_python(CHANGES_NO_SIGNAL)
    assert done.returncode == 0, done.stderr
