"""Whole jobs whose /dev/shm is small, as in a container: they train as any other, and warn once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from deep import deep
from soon import SOON_S

from multiproc.conftest import missing_backends
from multiproc.containers import need_namespaces, with_shm
from multiproc.job import WORKERS, CheckResults, launcher_command, run
from multiproc.registry import checks_of

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

WORKER = str(WORKERS / "small_memory.py")
EVERY_PATH = str(WORKERS / "every_path.py")
GRADIENTS = 4096  # KiB on each rank.
WARNINGS = {
    "1m": "has no room for shared memory: needed",
    "12m": "some tensors use private memory",
}


def with_memory_of(size: str, *command: str) -> list[str]:
    """The command, with a /dev/shm of this size."""
    return with_shm(f"size={size}", *command)


@pytest.fixture(scope="module", autouse=True)
def needs_namespaces() -> None:
    need_namespaces()


def train(
    np: int, size: str, steps: int = 6, stage: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """What rank 0 reports, and the warnings about memory."""
    sharding = () if stage is None else (str(stage),)
    arguments = (WORKER, str(GRADIENTS), str(steps), *sharding)
    command = with_memory_of(size, *launcher_command(np, "local", *arguments))
    output = run(command, timeout=100).expect_success().output
    return report_of(output), warnings_of(output)


def report_of(output: str) -> dict[str, Any]:
    """What rank 0 reports, whom no lack of memory has kept long in init()."""
    (text,) = re.findall(r"TRAINED (\{.*\})", output)
    report: dict[str, Any] = json.loads(text)
    assert report["init_s"] < SOON_S, report
    return report


def warnings_of(output: str) -> list[str]:
    """Those of the product about memory."""
    return [
        line
        for line in output.splitlines()
        if "mydist WARNING" in line and ("shared memory" in line or "/dev/shm" in line)
    ]


def expect_sizes(warning: str, np: int, most_free: int, least: int = GRADIENTS * 1024 + 1) -> None:
    """What the gradients of all ranks need, at least this on each rank, and what there is."""
    found = re.search(
        r"tensors of (\d+) bytes on each of \d ranks: needed (\d+) bytes, free (\d+)", warning
    )
    assert found is not None, warning
    mine, needed, free = (int(number) for number in found.groups())
    assert mine * np == needed >= least * np
    assert 0 < free < most_free


@pytest.mark.deep
def test_wrapping_an_optimizer_warns_before_the_first_step() -> None:
    _, warnings = train(2, "12m", steps=0)
    assert len(warnings) == 1, warnings
    assert "some tensors may have to use private memory" in warnings[0]
    expect_sizes(warnings[0], 2, 12 << 20)


@pytest.mark.parametrize("np", [2, deep(3)])
def test_losses_do_not_depend_on_the_size(np: int) -> None:
    plenty, warnings = train(np, "256m")
    assert warnings == [], warnings
    assert plenty["backend"] == "local"

    # The arena fits, the gradients do not.
    little, warnings = train(np, "12m")
    assert len(warnings) == 1, warnings
    expect_sizes(warnings[0], np, 12 << 20)
    assert little["losses"] == plenty["losses"]
    assert little["backend"] == "local"
    assert little["free"] >= 3 << 20  # A quarter is left to other programs.


@pytest.mark.parametrize("stage", [deep(1), 2])
def test_a_sharded_optimizer_trains_without_room_for_its_buckets(stage: int) -> None:
    plenty, _ = train(2, "256m")
    little, warnings = train(2, "12m", stage=stage)
    assert len(warnings) == 1, warnings
    # The bucket of the first layer has its weight alone, so no more than this.
    expect_sizes(warnings[0], 2, 12 << 20, least=GRADIENTS * 1024)
    assert little["losses"] == plenty["losses"]
    assert little["backend"] == "local"


@pytest.mark.parametrize("backend", ["gloo"])
def test_without_room_for_an_arena_the_job_runs_over_gloo(backend: str) -> None:
    assert backend not in missing_backends()
    plenty, _ = train(2, "256m")
    none, warnings = train(2, "1m")
    assert len(warnings) == 1, warnings
    assert re.search(r"has no room for shared memory: needed \d+ bytes, free 10\d+", warnings[0])
    assert none["losses"] == plenty["losses"]
    assert none["backend"] == backend


@pytest.mark.deep
def test_room_for_no_file_is_said_with_figures() -> None:
    assert "gloo" not in missing_backends()
    report, (warning,) = train(2, "8m,nr_inodes=1")
    assert re.search(
        r"cannot create shared memory in /dev/shm: needed \d{5,} bytes, free 8388608; "
        r"its files \(inodes\) may be used up: No space left on device",
        warning,
    ), warning
    assert report["backend"] == "gloo"


# Each collective by itself is checked against float64.
@pytest.mark.parametrize("backend", ["gloo"])
@pytest.mark.parametrize("np", [deep(np) for np in range(2, 9)])
def test_without_room_every_number_of_ranks_is_right(np: int, backend: str, tmp_path: Path) -> None:
    command = launcher_command(np, "local", EVERY_PATH, str(tmp_path), json.dumps({"none": {}}))
    outcome = run(with_memory_of("1m", *command), timeout=150).expect_success()
    (warning,) = warnings_of(outcome.output)
    assert WARNINGS["1m"] in warning
    for rank in range(np):
        report = json.loads((tmp_path / f"rank{rank}.json").read_text())["none"]
        assert "shared memory is unavailable" in report["path"]


@pytest.mark.parametrize(
    ("backend", "size"), [deep("gloo", "1m"), deep("mpi", "1m"), deep("local", "12m")]
)
def test_every_collective_is_right(backend: str, size: str, tmp_path: Path) -> None:
    np, suite = 3, "collectives"
    worker = str(WORKERS / "check_worker.py")
    # Gloo comes by itself where there is no room.
    asked = "mpi" if backend == "mpi" else "local"
    command = launcher_command(np, asked, worker, suite, "all", str(tmp_path))
    outcome = run(with_memory_of(size, *command), timeout=200)
    results = CheckResults(np, tmp_path, outcome)
    for check in checks_of(suite):
        if check.min_size <= np:
            results.expect_passed(check.name)
    results.expect_clean_end()
    warnings = warnings_of(outcome.output)
    assert len(warnings) == 1, warnings
    assert WARNINGS[size] in warnings[0]
