"""Ranks on several (pretended) hosts: one dies while the schedule is frozen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deep import deep
from soon import SOON_S

from multiproc.job import WORKERS, launch


@pytest.mark.parametrize("victim", [0, deep(2), deep(3)])
def test_a_death_ends_a_frozen_schedule_on_every_host(victim: int, tmp_path: Path) -> None:
    """Of the root, of the other host's leader, and of a rank that leads nobody."""
    env = {
        "MYDIST_SHARED_MEMORY": "1",
        "MYDIST_FREEZE_AFTER": "2",
        "MYDIST_STALL_WARNING_SECONDS": "600",
        "TEST_RANKS_PER_HOST": "2",
    }
    worker = str(WORKERS / "frozen_until_killed.py")
    outcome = launch(4, "gloo", worker, str(victim), str(tmp_path), env=env)
    assert outcome.code == 137, outcome.output
    struck = json.loads((tmp_path / f"rank{victim}").read_text())
    for rank in {0, 1, 2, 3} - {victim}:
        row = json.loads((tmp_path / f"rank{rank}").read_text())
        learned = row["learned"]
        assert learned.startswith("PeerLostError: ") and f"rank {victim} (host " in learned, learned
        assert row["at"] - struck["at"] < SOON_S, row
