"""Fixtures: each job of checks runs once per session, whatever tests ask for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multiproc.backends import missing_backends
from multiproc.job import CheckResults, run_suite
from multiproc.jobs import DEEP, ORDINARY, Job

# Seconds; far more than any job takes, as the machine may be busy.
SUITE_TIMEOUT = 1200.0

# The jobs of this run.
JOBS = pytest.StashKey[tuple[Job, ...]]()


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the jobs: all with --deep, more with --slice, fewer with --turn."""
    if config.getoption("--deep"):
        config.stash[JOBS] = DEEP
        return
    ordinary = {job.name for job in ORDINARY}
    piece = config.getoption("--slice") or ()
    more = [job for job in DEEP if job.name in piece and job.name not in ordinary]
    turn = config.getoption("--turn")
    config.stash[JOBS] = (*(job for job in ORDINARY if job.has_turn(turn)), *more)


@pytest.fixture(autouse=True)
def needs_backend(request: pytest.FixtureRequest) -> None:
    """Skips what is parametrized with a backend that was not built, saying why."""
    callspec = getattr(request.node, "callspec", None)
    backend = callspec.params.get("backend") if callspec else None
    reason = missing_backends().get(str(backend))
    if reason is not None:
        pytest.skip(f"no {backend} backend: {reason}")


@pytest.fixture(scope="session")
def suite_results(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Job], CheckResults]:
    """The results of a job, which is run when it is first asked for."""
    cache: dict[Job, CheckResults] = {}

    def results(job: Job) -> CheckResults:
        if job not in cache:
            folder = tmp_path_factory.mktemp(job.name)
            cache[job] = run_suite(job, folder, SUITE_TIMEOUT)
        return cache[job]

    return results
