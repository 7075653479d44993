"""What init() makes of the environment of each launcher, and of a broken one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping

import pytest
from soon import soon

from mydist.errors import CollectiveTimeoutError, MydistError
from mydist.job import bootstrap, meeting

MYDISTRUN = {
    "MYDIST_RANK": "1",
    "MYDIST_SIZE": "2",
    "MYDIST_RENDEZVOUS": "127.0.0.1:1",
    "MYDIST_JOB_ID": "00112233445566778899aabbccddeeff",
    "MYDIST_JOB_KEY_FD": "999999",
}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
OPEN_MPI_ALONE = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def place(environment: Mapping[str, str]) -> tuple[int, int, str]:
    context = bootstrap.detect(1, environment)
    return context.rank, context.size, context.backend


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, "local")),
        ({"MYDIST_CONTROLLER": "auto"}, (0, 1, "local")),
        ({"MYDIST_CONTROLLER": "gloo"}, (0, 1, "local")),
        ({"MYDIST_CONTROLLER": "local"}, (0, 1, "local")),
        ({"MYDIST_CONTROLLER": "mpi"}, (-1, 0, "mpi")),
        (OPEN_MPI, (1, 2, "mpi")),
        ({**OPEN_MPI, **TORCHRUN}, (1, 2, "mpi")),
        (OPEN_MPI_ALONE, (0, 1, "local")),
        ({**OPEN_MPI_ALONE, "MYDIST_CONTROLLER": "mpi"}, (0, 1, "mpi")),
        ({**MYDISTRUN, "MYDIST_RANK": "0", "MYDIST_SIZE": "1"}, (0, 1, "local")),
        ({**MYDISTRUN, **TORCHRUN, "MYDIST_RANK": "0", "MYDIST_SIZE": "1"}, (0, 1, "local")),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, (0, 1, "local")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1, "local")),
    ],
)
def test_launchers_are_told_apart(
    environment: Mapping[str, str], expected: tuple[int, int, str]
) -> None:
    assert place(environment) == expected


def without(environment: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key != name}


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        (
            {"MYDIST_CONTROLLER": "nccl"},
            r"MYDIST_CONTROLLER='nccl' is not valid: expected auto",
        ),
        (without(MYDISTRUN, "MYDIST_RANK"), r"MYDIST_RANK not set, although MYDIST_SIZE, .* is"),
        (without(MYDISTRUN, "MYDIST_SIZE"), r"MYDIST_SIZE not set, although .*mydistrun sets all"),
        (without(MYDISTRUN, "MYDIST_JOB_KEY_FD"), r"MYDIST_JOB_KEY_FD not set"),
        ({**MYDISTRUN, "MYDIST_RANK": "2"}, r"MYDIST_RANK=2: expected an integer from 0 to 1"),
        ({**MYDISTRUN, "MYDIST_RANK": "one"}, r"MYDIST_RANK=one: expected an integer"),
        ({**MYDISTRUN, "MYDIST_SIZE": "0"}, r"MYDIST_SIZE=0: expected an integer from 1"),
        ({**MYDISTRUN, "MYDIST_SIZE": "9" * 5000}, r"MYDIST_SIZE=9+: expected an integer"),
        ({**MYDISTRUN, "MYDIST_TIMEOUT_SECONDS": "0"}, r"MYDIST_TIMEOUT_SECONDS=0: expected a"),
        ({**MYDISTRUN, "MYDIST_TIMEOUT_SECONDS": "nan"}, r"MYDIST_TIMEOUT_SECONDS=nan: expected"),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_RANK"), r"OMPI_COMM_WORLD_RANK not set, .* Open MPI's"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "2"}, r"OMPI_COMM_WORLD_RANK=2: expected an integer"),
        ({"RANK": "0"}, r"WORLD_SIZE not set, although RANK is: torchrun sets both.*unset RANK to"),
        (without(TORCHRUN, "MASTER_ADDR"), r"MASTER_ADDR not set, although RANK, WORLD_SIZE, MA"),
        ({**TORCHRUN, "MASTER_PORT": "0"}, r"MASTER_PORT=0: expected an integer from 1 to 65535"),
        ({**TORCHRUN, "RANK": "7"}, r"RANK=7: expected an integer from 0 to 1"),
    ],
)
def test_a_broken_environment_names_the_variable(environment: Mapping[str, str], text: str) -> None:
    with soon(), pytest.raises(ValueError, match=text):
        bootstrap.detect(1, environment)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({**MYDISTRUN, "MYDIST_CONTROLLER": "mpi"}, r"started by mydistrun without MPI.*--mpi"),
        ({**OPEN_MPI, "MYDIST_CONTROLLER": "gloo"}, r"started by mpirun, which provides no rend"),
        ({**OPEN_MPI, "MYDIST_CONTROLLER": "local"}, r"no rendezvous. Start it with `mydistrun`"),
        ({**TORCHRUN, "MYDIST_CONTROLLER": "mpi"}, r"RANK and WORLD_SIZE say that the job was"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, r"PMI_RANK=0, PMI_SIZE=2: .*MPICH.*Open MPI"),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"},
            r"SLURM_PROCID=1: the job was started by srun, which this version does not support",
        ),
        (MYDISTRUN, r"rank 1: this process has no job key: MYDIST_JOB_KEY_FD=999999 is not"),
    ],
)
def test_a_contradiction_says_how_to_start(environment: Mapping[str, str], text: str) -> None:
    with soon(), pytest.raises(MydistError, match=text):
        bootstrap.detect(1, environment)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def torchrun_environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(meeting, "_stores", {})
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def test_a_second_process_of_a_rank_is_refused(torchrun_environment: dict[str, str]) -> None:
    meeting.store_exchange(torchrun_environment, "1", 0, 2, 30.0)
    with pytest.raises(MydistError, match="another process of this rank has called init"):
        meeting.store_exchange(torchrun_environment, "1", 0, 2, 30.0)


def test_ranks_exchange_over_a_store(torchrun_environment: dict[str, str]) -> None:
    """Two ranks as two threads over one store; five rounds, binary contents."""
    results: dict[int, list[list[bytes]]] = {0: [], 1: []}
    first = meeting.store_exchange(torchrun_environment, "1", 0, 2, 30.0)
    second = meeting.store_exchange(torchrun_environment, "1", 1, 2, 30.0)

    def work(rank: int, exchange: meeting.Exchange) -> None:
        for number in range(5):
            results[rank].append(exchange(bytes([rank, number, 0, 255])))

    threads = [threading.Thread(target=work, args=pair) for pair in ((0, first), (1, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    expected = [[bytes([r, n, 0, 255]) for r in range(2)] for n in range(5)]
    assert results == {0: expected, 1: expected}


def test_a_rank_of_an_earlier_init_is_not_met(torchrun_environment: dict[str, str]) -> None:
    meeting.store_exchange(torchrun_environment, "1", 0, 2, 30.0)  # Serves the store.
    stale = meeting.store_exchange(torchrun_environment, "1", 1, 2, 0.05)
    current = meeting.store_exchange(torchrun_environment, "2", 0, 2, 0.05)
    with pytest.raises(MydistError, match=r"ranks \[0\] of 2 did not arrive within 0\.05 s"):
        stale(b"old")
    text = r"ranks \[1\] of 2 did not arrive within 0\.05 s"
    with pytest.raises(CollectiveTimeoutError, match=text) as caught:
        current(b"new")
    assert caught.value.failure["ranks"] == [1]
    assert caught.value.failure["code"] == "TIMEOUT"


def test_no_store_names_address_and_port() -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    expected = (
        r"cannot reach the store at MASTER_ADDR=127\.0\.0\.1, M.* \(gave up after \d+\.\d s\)"
    )
    with pytest.raises(MydistError, match=expected):
        meeting.store_exchange(environment, "1", 1, 2, 0.2)


def test_a_port_that_another_program_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        began = time.monotonic()
        with pytest.raises(MydistError, match="address already in use.* that the port is free") as (
            caught
        ):
            meeting.store_exchange(environment, "1", 0, 2, 30.0)
    assert f"cannot reach the store at MASTER_ADDR=127.0.0.1, MASTER_PORT={port}: " in str(
        caught.value
    )
    assert time.monotonic() - began < 5.0
