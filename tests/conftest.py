"""What all Python tests share: the choice of an ordinary or a deep run, and the report of times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The choice of jobs, and the report."""
    parser.addoption("--deep", action="store_true", help="run all jobs with all their cases")
    # No variable: the tests start pytest themselves, which would write to the same file.
    parser.addoption("--report", type=Path, help="where a JSON line per test goes")


def pytest_configure(config: pytest.Config) -> None:
    """Where the report goes."""
    if path := config.getoption("--report"):
        config.pluginmanager.register(Report(path))


class Report:
    """Writes a JSON line per test: name, result and seconds, which scripts/test_report.py reads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of a test has ended; the call counts, or whatever else went wrong."""
        if report.when != "call" and report.passed:
            return
        # A check runs inside a job, which only the first test that asks for it waits for.
        seconds = dict(report.user_properties).get("seconds", report.duration)
        row = {"name": report.nodeid, "result": report.outcome, "seconds": seconds}
        self._file.write(json.dumps(row) + "\n")

    def pytest_sessionfinish(self) -> None:
        """All tests have ended."""
        self._file.close()
