"""Every check × number of ranks × backend, read from the results of one job each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from multiproc.conftest import JOBS
from multiproc.job import CheckResults
from multiproc.jobs import ORDINARY, Job
from multiproc.registry import SUITES, Check, checks_of

Results = Callable[[Job], CheckResults]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item a check of each job of this run."""
    if "job" not in metafunc.fixturenames:
        return
    jobs: tuple[Job, ...] = metafunc.config.stash[JOBS]
    items = []
    for job in jobs:
        if "name" not in metafunc.fixturenames:
            items.append(pytest.param(job, job.backend, id=job.name))
            continue
        items += [
            pytest.param(job, job.backend, check.name, id=f"{job.name}-{check.name}")
            for check in checks_of(job.suite, job.every_case)
            if check.min_size <= job.np
        ]
    names = ["job", "backend", "name"] if "name" in metafunc.fixturenames else ["job", "backend"]
    metafunc.parametrize(names, items)


def test_check(
    suite_results: Results,
    job: Job,
    backend: str,
    name: str,
    record_property: Callable[[str, object], None],
) -> None:
    results = suite_results(job)
    record_property("seconds", results.seconds(name))
    results.expect_passed(name)
    if reason := results.reason_to_skip(name):
        pytest.skip(reason)


def test_job_ends_cleanly(
    suite_results: Results,
    job: Job,
    backend: str,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("seconds", suite_results(job).job_seconds)
    suite_results(job).expect_clean_end()


def every_check() -> list[Check]:
    return [check for suite in SUITES for check in checks_of(suite)]


def run_by(jobs: Iterable[Job]) -> list[Check]:
    return [
        check
        for job in jobs
        for check in checks_of(job.suite, job.every_case)
        if check.min_size <= job.np
    ]


def test_an_ordinary_run_leaves_out_no_check() -> None:
    several = {check.stem for check in run_by(job for job in ORDINARY if job.np > 1)}
    assert {check.stem for check in every_check()} - several == set()


def test_an_ordinary_run_leaves_out_no_case() -> None:
    assert {check.name for check in every_check()} - {c.name for c in run_by(ORDINARY)} == set()
