"""What all Python tests share: the choice of an ordinary or a deep run, and the report of times."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

QUICK_TORCH = Path(__file__).parent / "quick_torch"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The choice of tests, and the report."""
    parser.addoption("--deep", action="store_true", help="run all tests and all jobs of checks")
    parser.addoption(
        "--slice",
        type=Slice.parse,
        metavar="I/N",
        help="run the ordinary tests and every Nth of those that else only --deep runs",
    )
    parser.addoption(
        "--turn",
        type=int,
        metavar="NUMBER",
        help="of the tests marked turns(N), run only every Nth: others with each NUMBER",
    )
    # No variable: the tests start pytest themselves, which would write to the same file.
    parser.addoption("--report", type=Path, help="where a JSON line per test goes")


def pytest_configure(config: pytest.Config) -> None:
    """Where the report goes, and how programs of tests import torch."""
    if not config.getoption("--deep"):
        paths = [str(QUICK_TORCH), os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    config.addinivalue_line(
        "markers", "deep(group=NAME): too slow for every change; a slice has all of a group or none"
    )
    config.addinivalue_line("markers", "turns(n): an ordinary run of the whole suite has one of n")
    # A shell has what runs in the background ignore Ctrl-C, and nohup the end of the terminal. The
    # jobs of the tests are to feel both.
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    path = config.getoption("--report")
    if path and not hasattr(config, "workerinput"):  # Workers of xdist send their reports on.
        config.pluginmanager.register(Report(path))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """An ordinary run leaves out what is marked deep, but for its slice."""
    if config.getoption("--deep"):
        return
    piece: Slice | None = config.getoption("--slice")
    turn: int | None = config.getoption("--turn")
    marked: Counter[Path] = Counter()
    left_out = set()
    for item in items:
        deep, turns = map(item.get_closest_marker, ("deep", "turns"))
        if deep:
            chosen = piece is not None and deep.kwargs.get("group", item.nodeid) in piece
        elif turns and turn is not None:  # Neighbours in a file alternate.
            marked[item.path] += 1
            chosen = (marked[item.path] + turn) % turns.args[0] == 0
        else:
            chosen = True
        if not chosen:
            left_out.add(item)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(optionalhook=True)  # A run by hand needs no xdist.
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each worker gets whole files, whose tests may share a job; a job of checks is like a file."""
    from xdist.scheduler import LoadScopeScheduling

    class FilesAndJobs(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            job = re.search(r"\[(\w+-np\d+-\w+)", test)
            return f"{file}::{job[1]}" if job else file

    return FilesAndJobs(config, log)


class Slice:
    """Every Nth of any names, chosen by their text: adding a test does not move the others."""

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.count = count

    @classmethod
    def parse(cls, text: str) -> Slice:
        """From "I/N" with 0 <= I < N."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if not found or int(found[1]) >= int(found[2]):
            raise argparse.ArgumentTypeError(f"got '{text}', expected I/N with I from 0 to N - 1")
        return cls(int(found[1]), int(found[2]))

    def __contains__(self, name: str) -> bool:
        return zlib.crc32(name.encode()) % self.count == self.number


class Report:
    """Writes a JSON line per test: name, result and seconds, which scripts/test_report.py reads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._setup_seconds: dict[str, float] = {}  # Fixtures may start jobs.

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of a test has ended; the call counts, or whatever else went wrong."""
        if report.when == "setup":
            self._setup_seconds[report.nodeid] = report.duration
        if report.when != "call" and report.passed:
            return
        # A check runs inside a job, which only the first test that asks for it waits for.
        setup = self._setup_seconds.get(report.nodeid, 0.0) if report.when == "call" else 0.0
        own = report.duration + setup
        seconds = dict(report.user_properties).get("seconds", own)
        row = {"name": report.nodeid, "result": report.outcome, "seconds": seconds}
        self._file.write(json.dumps(row) + "\n")

    def pytest_sessionfinish(self) -> None:
        """All tests have ended."""
        self._file.close()
