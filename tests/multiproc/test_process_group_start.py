"""How process groups of the backend "mydist" start: memory, time, torch's checks, failures."""

from __future__ import annotations

import os
import re

import pytest
from deep import deep

from multiproc.containers import need_namespaces, with_shm
from multiproc.job import WORKERS, launcher_command, run

WORKER = str(WORKERS / "process_group_start.py")


# A run of the whole suite has one of these two, the next one the other.
@pytest.mark.turns(2)
@pytest.mark.parametrize("np", [2, deep(4)])
def test_64_groups_fit_a_small_dev_shm_without_a_warning(np: int) -> None:
    need_namespaces()
    command = with_shm("size=64m", *launcher_command(np, "local", WORKER, "figures"))
    output = run(command, timeout=200).expect_success().output
    found = re.findall(r"GROUP (\d+) bytes, ([\d.]+) s", output)
    assert len(found) == np, output
    for size, seconds in found:
        assert 64 << 10 < int(size) <= 256 << 10, output
        # Where ranks share cores, the time says how busy the machine is.
        assert float(seconds) < 0.05 or np > len(os.sched_getaffinity(0)), output
    assert "WARNING" not in output, output


@pytest.mark.turns(2)
def test_torchs_own_checks_around_each_call() -> None:
    outcome = run(
        launcher_command(2, "local", WORKER, "detail"),
        timeout=120,
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    )
    assert outcome.expect_success().output.count("DETAIL\n") == 2


def test_a_start_that_fails_on_one_rank_only_may_be_tried_again() -> None:
    outcome = run(launcher_command(2, "local", WORKER, "again"), timeout=120)
    assert outcome.expect_success().output.count("AGAIN\n") == 2
