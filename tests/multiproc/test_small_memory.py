"""Whole jobs whose /dev/shm is small, as in a container: they train as any other, and say so once.

/dev/shm is a file system of its own, in a mount namespace that a user namespace makes allowed.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from multiproc.conftest import missing_backends
from multiproc.job import WORKERS, CheckResults, launcher_command, run
from multiproc.registry import checks_of

WORKER = str(WORKERS / "small_memory.py")
GRADIENTS = 4096  # KiB on each rank.
WARNINGS = {
    "1m": "has no room for shared memory: needed",
    "12m": "some tensors lie in private memory",
}
MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs /dev/shm && shift && exec "$@"'


def with_memory_of(size: str, *command: str) -> list[str]:
    """The command, with a /dev/shm of this size."""
    return [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        MOUNT,
        "sh",
        size,
        *command,
    ]


@pytest.fixture(scope="module", autouse=True)
def needs_mounts() -> None:
    tried = subprocess.run(with_memory_of("1m", "true"), capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no mount namespaces here: {tried.stderr.decode().strip()}")


def train(np: int, size: str) -> tuple[dict[str, Any], list[str]]:
    """What rank 0 reports, and the warnings about memory."""
    command = with_memory_of(size, *launcher_command(np, "local", WORKER, str(GRADIENTS)))
    output = run(command, timeout=100).expect_success().output
    (report,) = re.findall(r"TRAINED (\{.*\})", output)
    found: dict[str, Any] = json.loads(report)
    return found, warnings_of(output)


def warnings_of(output: str) -> list[str]:
    """Those of the product about memory."""
    return [
        line
        for line in output.splitlines()
        if "mydist WARNING" in line and ("shared memory" in line or "/dev/shm" in line)
    ]


@pytest.mark.parametrize("np", [2, 3])
def test_losses_do_not_depend_on_the_size(np: int) -> None:
    plenty, warnings = train(np, "256m")
    assert warnings == [], warnings
    assert plenty["backend"] == "local"

    # The arena fits, the gradients do not.
    little, warnings = train(np, "12m")
    assert len(warnings) == 1, warnings
    needed = re.search(
        r"tensors of (\d+) bytes on each of \d ranks: needed (\d+) bytes, free (\d+)", warnings[0]
    )
    assert needed is not None, warnings
    assert int(needed[1]) * np == int(needed[2]) > GRADIENTS * 1024 * np
    assert 0 < int(needed[3]) < 12 << 20
    assert little["losses"] == plenty["losses"]
    assert little["backend"] == "local"
    assert little["free"] >= 3 << 20  # A quarter is left to other programs.


@pytest.mark.parametrize("backend", ["gloo"])
def test_without_room_for_an_arena_the_job_runs_over_gloo(backend: str) -> None:
    assert backend not in missing_backends()
    plenty, _ = train(2, "256m")
    none, warnings = train(2, "1m")
    assert len(warnings) == 1, warnings
    assert re.search(r"has no room for shared memory: needed \d+ bytes, free 10\d+", warnings[0])
    assert none["losses"] == plenty["losses"]
    assert none["backend"] == backend


@pytest.mark.parametrize(("backend", "size"), [("gloo", "1m"), ("mpi", "1m"), ("local", "12m")])
def test_every_collective_is_right(backend: str, size: str, tmp_path: Path) -> None:
    np, suite = 3, "collectives"
    worker = str(WORKERS / "check_worker.py")
    # Gloo comes by itself where there is no room.
    asked = "mpi" if backend == "mpi" else "local"
    command = launcher_command(np, asked, worker, suite, str(tmp_path))
    outcome = run(with_memory_of(size, *command), timeout=200)
    results = CheckResults(np, tmp_path, outcome)
    for check in checks_of(suite):
        if check.min_size <= np:
            results.expect_passed(check.name)
    results.expect_clean_end()
    warnings = warnings_of(outcome.output)
    assert len(warnings) == 1, warnings
    assert WARNINGS[size] in warnings[0]
