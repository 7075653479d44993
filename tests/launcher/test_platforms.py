"""Platforms: which one starts a job, and that a row of the table is all that a new one needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from mydist.launcher.children import Children
from mydist.launcher.hosts import Host
from mydist.launcher.job import run_job
from mydist.launcher.job_spec import JobSpec, SshOptions
from mydist.launcher.placement import RankPlacement, place_ranks
from mydist.launcher.platforms import table
from mydist.launcher.platforms.direct import DirectPlatform
from mydist.launcher.platforms.mpi import MpiPlatform
from mydist.launcher.platforms.platform import Launch, Platform
from mydist.launcher.stop_sequence import AFTER_FAILURE

HERE, FAR = Host("localhost", 2), Host("far.example", 2)


def spec_of(*hosts: Host, num_proc: int = 2, controller: str | None = None) -> JobSpec:
    return JobSpec(("true",), num_proc, hosts, controller=controller)


@pytest.mark.parametrize(
    ("spec", "host", "is_local"),
    [
        (JobSpec(("true",), 1, ()), Host("127.0.0.2", 2), True),
        (JobSpec(("true",), 1, (), ssh=SshOptions(loopback_too=True)), Host("127.0.0.2", 2), False),
        (JobSpec(("true",), 1, (), ssh=SshOptions(loopback_too=True)), HERE, True),
        (JobSpec(("true",), 1, ()), FAR, False),
    ],
)
def test_hosts_that_need_no_ssh(spec: JobSpec, host: Host, is_local: bool) -> None:
    assert spec.is_local(host) == is_local


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (spec_of(HERE), DirectPlatform),
        (spec_of(HERE, FAR, num_proc=3, controller="gloo"), DirectPlatform),
        (spec_of(HERE, controller="mpi"), MpiPlatform),
        (spec_of(FAR, controller="mpi"), MpiPlatform),
    ],
)
def test_one_platform_serves_a_job(spec: JobSpec, expected: type[Platform]) -> None:
    ranks = place_ranks(spec.hosts, spec.num_proc)
    assert table.platform_for(spec, ranks) is expected


class Pretended:
    """Starts nothing; its ranks end at once, rank 1 with `status`."""

    after_timeout = AFTER_FAILURE
    status = 0
    closed = 0

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    @staticmethod
    def serves(spec: JobSpec, ranks: Sequence[RankPlacement]) -> bool:
        return True

    @staticmethod
    def describe(spec: JobSpec, environment: Mapping[str, str], children: Children) -> list[str]:
        return ["pretended"]

    async def connect(self, children: Children) -> None: ...

    def start(self, part: range, variables: Mapping[str, str]) -> None:
        events = self._launch.events
        for rank in part:
            events.on_started(rank, 1000 + rank)
            events.on_output(rank, 1, b"hello\n")
        for rank in part:
            events.on_exited(rank, self.status if rank == 1 else 0)

    def send_signal(self, signum: int, children: range) -> None: ...

    def tell_end(self, child: int, status: int) -> None: ...

    def pause_output(self, paused: bool) -> None: ...

    def out_of_memory(self) -> bool:
        return True

    async def close(self) -> None:
        type(self).closed += 1


class Nameless(Pretended):
    """Fails as a whole."""

    def start(self, part: range, variables: Mapping[str, str]) -> None:
        self._launch.events.on_unnamed_failure(7, "no rank is known")
        super().start(part, variables)


def run_on(platform: type[Platform], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(table, "PLATFORMS", (platform, *table.PLATFORMS))
    return run_job(spec_of(HERE), {})


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (0, 0, ""),
        (3, 3, "mydistrun: rank 1 on host localhost (pid 1001) exited with code 3"),
        (-9, 137, "was killed by SIGKILL (signal 9)"),
    ],
)
def test_a_job_runs_on_a_platform_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    status: int,
    code: int,
    words: str,
) -> None:
    monkeypatch.setattr(Pretended, "status", status)
    monkeypatch.setattr(Pretended, "closed", 0)
    assert run_on(Pretended, monkeypatch) == code
    assert Pretended.closed == 1
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0]<stdout>:hello", "[1]<stdout>:hello"]
    assert words in err
    assert ("memory" in err) == (status == -9)


def test_a_failure_without_a_rank_ends_the_job(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_on(Nameless, monkeypatch) == 7
    assert capfd.readouterr().err == "no rank is known\n"
