"""Every check × number of ranks × backend, read from the results of one job each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multiproc.conftest import JOBS
from multiproc.job import CheckResults
from multiproc.jobs import ORDINARY, Job
from multiproc.registry import SUITES, checks_of

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


def test_an_ordinary_run_leaves_out_no_check() -> None:
    """Each check has a job with several ranks, or with as many as it makes sense on."""
    run = {
        check.stem
        for job in ORDINARY
        for check in checks_of(job.suite, job.every_case)
        if check.min_size <= job.np and (job.np > 1 or job.suite == "main")
    }
    every = {check.stem for suite in SUITES for check in checks_of(suite)}
    assert every - run == set()


def test_an_ordinary_run_has_all_cases_once() -> None:
    full = {check.name for job in ORDINARY if job.every_case for check in checks_of(job.suite)}
    few = {check.name for job in ORDINARY for check in checks_of(job.suite, job.every_case)}
    lacking = {name for suite in SUITES for name in (c.name for c in checks_of(suite))} - full - few
    assert lacking == set()
