"""Every check × number of ranks × backend, read from the results of one job each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multiproc.job import CheckResults
from multiproc.registry import checks_of

JOBS = [
    *[(np, backend, "main") for backend in ("gloo", "mpi") for np in (1, 2, 3, 4)],
    *[
        (np, backend, suite)
        for suite in ("optimizer", "sets", "state")
        for backend in ("gloo", "mpi")
        for np in (1, 2, 3, 4)
        if (np, backend) != (1, "mpi")  # One rank talks to nobody; "main" starts it under mpirun.
    ],
    *[(3, backend, "unfused") for backend in ("gloo", "mpi")],
    (2, "mpi", "shared"),
    (3, "gloo", "shared"),
    (4, "gloo", "hosts"),
    (3, "mpi", "hosts"),
]
ITEMS = [
    pytest.param(np, backend, suite, check.name, id=f"{backend}-np{np}-{suite}-{check.name}")
    for np, backend, suite in JOBS
    for check in checks_of(suite)
    if check.min_size <= np
]

Results = Callable[[int, str, str], CheckResults]


@pytest.mark.parametrize(("np", "backend", "suite", "name"), ITEMS)
def test_check(suite_results: Results, np: int, backend: str, suite: str, name: str) -> None:
    suite_results(np, backend, suite).expect_passed(name)


@pytest.mark.parametrize(("np", "backend", "suite"), JOBS)
def test_job_ends_cleanly(suite_results: Results, np: int, backend: str, suite: str) -> None:
    suite_results(np, backend, suite).expect_clean_end()
