"""Fixtures: each job of checks runs once per session, whatever tests ask for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch  # noqa: F401  (the extension needs its libraries)

from multiproc.job import CheckResults, run_suite
from mydist import _C

# Seconds; a job of four ranks on two cores takes about a quarter of this.
SUITE_TIMEOUT = 150.0


def missing_backends() -> dict[str, str]:
    """Reasons, by name, of the backends that this build cannot offer."""
    reports = [_C.backend_report(name) for name in ("local", "mpi", "gloo")]
    return {
        str(report["name"]): str(report["reason"]) for report in reports if not report["available"]
    }


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
) -> Callable[[int, str, str], CheckResults]:
    """(np, backend, suite) → the results of that job."""
    cache: dict[tuple[int, str, str], CheckResults] = {}

    def results(np: int, backend: str, suite: str) -> CheckResults:
        key = (np, backend, suite)
        if key not in cache:
            folder = tmp_path_factory.mktemp(f"{suite}_{backend}_{np}")
            cache[key] = run_suite(np, backend, suite, folder, SUITE_TIMEOUT)
        return cache[key]

    return results
