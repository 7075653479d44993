"""Every check × number of ranks × backend, read from the results of one job each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multiproc.job import CheckResults
from multiproc.registry import checks_of

# Over MPI and Gloo without shared memory, but for the suite "shared". One rank talks to nobody.
JOBS = [
    *[(np, "local", "main") for np in (1, 2, 3, 4)],
    *[(np, "gloo", "main") for np in (2, 4)],
    *[(np, "mpi", "main") for np in (1, 2, 3)],
    *[
        (np, backend, suite)
        for suite in ("optimizer", "sets", "state")
        for np, backend in ((1, "local"), (2, "local"), (3, "local"), (4, "local"))
    ],
    *[(3, "gloo", suite) for suite in ("optimizer", "sets", "state")],
    *[(4, "mpi", suite) for suite in ("optimizer", "sets", "state")],
    (3, "local", "unfused"),
    (3, "mpi", "unfused"),
    (3, "mpi", "shared"),
    (2, "gloo", "shared"),
    (2, "local", "bucketed"),
    *[(np, "local", "frozen") for np in (2, 4)],
    (3, "gloo", "frozen"),
    *[(2, backend, "steady") for backend in ("local", "gloo", "mpi")],
    (4, "gloo", "steady_hosts"),
    (3, "gloo", "frozen_lone"),
    (2, "local", "late"),
    (5, "local", "crowded"),
    (3, "mpi", "crowded"),
    *[(4, backend, "late_hosts") for backend in ("gloo", "mpi")],
    *[(2, backend, "late_lone") for backend in ("gloo", "mpi")],
    (4, "gloo", "hosts"),
    (3, "mpi", "hosts"),
    (4, "gloo", "frozen_hosts"),
    (3, "mpi", "frozen_hosts"),
]
ITEMS = [
    pytest.param(np, backend, suite, check.name, id=f"{backend}-np{np}-{suite}-{check.name}")
    for np, backend, suite in JOBS
    for check in checks_of(suite)
    if check.min_size <= np
]
# Named alike, so that what leaves out checks by the number of ranks leaves out their jobs.
ENDS = [
    pytest.param(np, backend, suite, id=f"{backend}-np{np}-{suite}") for np, backend, suite in JOBS
]

Results = Callable[[int, str, str], CheckResults]


@pytest.mark.parametrize(("np", "backend", "suite", "name"), ITEMS)
def test_check(suite_results: Results, np: int, backend: str, suite: str, name: str) -> None:
    results = suite_results(np, backend, suite)
    results.expect_passed(name)
    if reason := results.reason_to_skip(name):
        pytest.skip(reason)


@pytest.mark.parametrize(("np", "backend", "suite"), ENDS)
def test_job_ends_cleanly(suite_results: Results, np: int, backend: str, suite: str) -> None:
    suite_results(np, backend, suite).expect_clean_end()
