"""Children of a rank know its numbers and are no ranks; ranks of a job started below it are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import mydist as md
from mydist.job import rank_record
from mydist.job.rank_record import (
    Numbers,
    drop_inherited,
    leave_record,
    parents_record,
    remove_record,
)

NUMBERS = Numbers(1, 2, 1, 2, 0, 1, True)
MYDISTRUN = {
    "MYDIST_RANK": "1",
    "MYDIST_SIZE": "2",
    "MYDIST_RENDEZVOUS": "10.0.0.1:7000",
    "MYDIST_JOB_ID": "outer",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "7001",
}
TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-1@1",
}
CHILD = """
import mydist as md, torch
print(md.rank(), md.size(), md.local_rank(), md.global_process_set.rank())
for call in (md.init, lambda: md.allreduce(torch.ones(1))):
    try:
        call()
    except ValueError as error:
        print(error)
"""
# A child of a rank of two that imports mydist first and then starts a job of its own.
NEW_JOB = """
from mydist import init, size
import os
try:
    init()
except ValueError as error:
    print("only the rank itself may call init()" in str(error))
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="1")
os.environ["TORCHELASTIC_RUN_ID"] = "another"
init()
print(size())
"""
# A rank whose job ends, and that joins others; the server of the workers starts before all of them.
FORKSERVER = """
import multiprocessing
from mydist.job.rank_record import Numbers, leave_record, remove_record

def ask(answers):
    import mydist as md
    try:
        answers.put(f"{md.rank()} of {md.size()}")
    except ValueError as error:
        answers.put(str(error))

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    answers = context.SimpleQueue()
    def tell():
        worker = context.Process(target=ask, args=(answers,))
        worker.start()
        print(answers.get(), flush=True)
        worker.join()
    tell()
    leave_record(Numbers(1, 2, 1, 2, 0, 1, True))
    tell()
    leave_record(Numbers(0, 3, 0, 3, 0, 1, True))
    tell()
    remove_record()
    tell()
"""


@pytest.fixture(autouse=True)
def another_process(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Records are read as if by a child of the process that left them."""
    if "launch" in request.fixturenames:
        monkeypatch.setattr(rank_record, "_read", reads_as_child)


def reads_as_child(environment: dict[str, str]) -> rank_record.RankRecord | None:
    if not environment.get("MYDIST_JOB_PARENT"):
        return None
    known = json.loads(environment["MYDIST_JOB_PARENT"])
    return rank_record.RankRecord(-1, Numbers(**known["numbers"]), known["launch"])


LAUNCHES = pytest.mark.parametrize(
    "launch", [MYDISTRUN, TORCHRUN, OPEN_MPI, {}], ids=["mydistrun", "torchrun", "mpirun", "plain"]
)


@LAUNCHES
def test_a_child_inherits_the_numbers(launch: dict[str, str]) -> None:
    environment = {"PATH": "/bin", **launch}
    leave_record(NUMBERS, environment, {})
    record = parents_record(environment, {})
    assert record is not None and record.numbers == NUMBERS and record.launch == launch
    before = dict(environment)
    drop_inherited(environment, {})
    assert environment == before


@LAUNCHES
@pytest.mark.parametrize(
    "started",
    [TORCHRUN | {"MASTER_PORT": "29501"}, OPEN_MPI | {"PMIX_NAMESPACE": "prterun-2@1"}],
    ids=["torchrun", "mpirun"],
)
def test_a_rank_of_a_new_job_is_no_child(launch: dict[str, str], started: dict[str, str]) -> None:
    environment = {"PATH": "/bin", **launch}
    leave_record(NUMBERS, environment, {})
    environment.update(started)
    assert parents_record(environment, {}) is None
    drop_inherited(environment, {})
    del environment["MYDIST_JOB_PARENT"]
    assert environment == {"PATH": "/bin", **started}


TAG = {"MYDIST_FAILURE_TAG": "0123"}
BY_MYDISTRUN = (
    MYDISTRUN
    | TAG
    | {
        "MYDIST_JOB_KEY_FD": "9",
        "MYDIST_JOB_ENDS_FD": "10",
        "MYDIST_SERVER_ADDRESSES": "0=a:1/",
        "MYDIST_HOST_ID": "a",
    }
)
BY_MYDISTRUN_MPI = OPEN_MPI | TAG | {"MYDIST_CONTROLLER": "mpi"}


@pytest.mark.parametrize(
    ("around", "started"),
    [(BY_MYDISTRUN, TORCHRUN), (BY_MYDISTRUN_MPI, TORCHRUN), (BY_MYDISTRUN, OPEN_MPI)],
    ids=["torchrun_below_mydistrun", "torchrun_below_mpi", "mpirun_below_mydistrun"],
)
def test_a_rank_that_has_left_no_record(around: dict[str, str], started: dict[str, str]) -> None:
    environment = {"PATH": "/bin", **around}
    drop_inherited(environment, {})
    assert environment == {"PATH": "/bin", **around}, "a rank keeps what its launcher gave it"
    environment |= started
    drop_inherited(environment, {})
    assert environment == {"PATH": "/bin", **started}


@LAUNCHES
def test_a_note_is_newer_than_the_environment(launch: dict[str, str]) -> None:
    environment, notes = {"PATH": "/bin", **launch}, dict[str, str]()
    leave_record(NUMBERS, environment, {})
    later = Numbers(0, 3, 0, 3, 0, 1, True)
    leave_record(later, dict(environment), notes)
    for inherited in (environment, {"PATH": "/bin", **launch}):
        record = parents_record(inherited, notes)
        assert record is not None and record.numbers == later
        assert parents_record({**inherited, "TORCHELASTIC_RUN_ID": "another"}, notes) is None
    remove_record(dict(environment), notes)
    assert parents_record(environment, notes) is None


@pytest.mark.parametrize("text", ["", "{", "3", "null", "[]", '{"pid": 1}'])
def test_what_is_no_record_is_ignored(text: str) -> None:
    environment = {"MYDIST_JOB_PARENT": text}
    assert parents_record(environment, {}) is None
    drop_inherited(environment, {})


def run_child(code: str = CHILD) -> list[str]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("launch", [MYDISTRUN])
def test_variables_that_a_rank_sets_itself_start_no_job(launch: dict[str, str]) -> None:
    environment = dict(launch)
    leave_record(NUMBERS, environment, {})
    environment |= {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert parents_record(environment, {}) is not None
    environment["TORCHELASTIC_RUN_ID"] = "another"
    assert parents_record(environment, {}) is None


def test_a_process_that_a_rank_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    md.shutdown()
    md.init()
    alone = run_child()
    record = json.loads(os.environ["MYDIST_JOB_PARENT"])
    record["numbers"]["size"] = 2
    monkeypatch.setenv("MYDIST_JOB_PARENT", json.dumps(record))
    one_of_two = run_child()
    md.shutdown()
    assert "MYDIST_JOB_PARENT" not in os.environ
    assert alone == ["0 1 0 0"]  # A job of its own.
    numbers, of_init, of_allreduce = one_of_two
    assert numbers == "0 2 0 0"
    child = f"is a child of rank 0 (pid {os.getpid()}); only the rank itself "
    assert of_init.startswith("init: ") and f"{child}may call init()" in of_init
    assert of_allreduce.startswith("allreduce: ") and f"{child}takes part" in of_allreduce


def test_a_child_that_has_imported_mydist_may_start_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    leave_record(NUMBERS, environment, {})
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run_child(NEW_JOB) == ["True", "1"]


@pytest.mark.parametrize("first", [0, 1], ids=["before_init", "in_a_job"])
def test_workers_of_forkserver_have_the_present_numbers(tmp_path: Path, first: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(FORKSERVER.replace("    tell()\n", "", 1 if first else 0))
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    answers = done.stdout.splitlines()
    without = "mydist has not been initialized; call mydist.init() first"
    assert answers == [without, "1 of 2", "0 of 3", without][first:]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "[]",
        "{}",
        json.dumps({"pid": 1, "numbers": {}, "launch": {}}),
        json.dumps({"pid": "1", "numbers": asdict(NUMBERS), "launch": {}}),
        json.dumps({"pid": 1, "numbers": {**asdict(NUMBERS), "rank": {}}, "launch": {}}),
        json.dumps({"pid": 1, "numbers": asdict(NUMBERS), "launch": 1}),
        json.dumps({"pid": 1, "numbers": asdict(NUMBERS), "launch": {"RANK": 0}}),
    ],
)
def test_what_is_no_record_is_none(text: str) -> None:
    assert parents_record({"MYDIST_JOB_PARENT": text}, {}) is None
    whole = {"pid": 1, "numbers": asdict(NUMBERS), "launch": {}}
    assert parents_record({"MYDIST_JOB_PARENT": json.dumps(whole)}, {}) is not None
