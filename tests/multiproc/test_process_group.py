"""torch.distributed's own programs over the backend "mydist", in jobs of several ranks."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from deep import deep

from multiproc.job import WORKERS, Outcome, launcher_command, run

WORKER = WORKERS / "process_group.py"
MODULES = ("torch_programs.py", "sharded_programs.py", "wrong_calls.py")
CHECKS = [
    name
    for path in (WORKER, *(WORKER.parent.parent / name for name in MODULES))
    for name in re.findall(r"^@check\ndef (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
]

JOBS = {
    "2 ranks": (2, {}),
    "3 ranks over Gloo": (3, {"MYDIST_SHARED_MEMORY": "0"}),
    "4 ranks on 2 hosts": (4, {"TEST_RANKS_PER_HOST": "2"}),
    "1 rank": (1, {}),
    "3 ranks": (3, {}),
}


def expect_passed(outcome: Outcome, size: int) -> None:
    failed = [line for line in outcome.output.splitlines() if "FAILED " in line]
    assert not failed, "\n".join(failed)
    outcome.expect_success()
    for name in [*CHECKS, "destroyed_and_made_again"]:
        assert outcome.output.count(f"PASSED {name}\n") == size, f"{name}:\n{outcome.output}"


@pytest.mark.parametrize(
    "job",
    ["2 ranks", "4 ranks on 2 hosts", deep("1 rank"), deep("3 ranks"), deep("3 ranks over Gloo")],
)
def test_programs_of_torch(job: str) -> None:
    assert len(CHECKS) > 20
    size, environment = JOBS[job]
    command = launcher_command(size, "local", str(WORKER))
    expect_passed(run(command, timeout=300, env=environment), size)


def test_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    outcome = run([*command, str(WORKERS / "process_group_smoke.py")], timeout=120)
    assert outcome.expect_success().output.count("SUM 3.0") == 2


def test_a_killed_rank_is_named_at_once() -> None:
    outcome = run(
        launcher_command(3, "local", str(WORKERS / "process_group_smoke.py"), "kill"), timeout=120
    )
    lost = re.findall(
        r"LOST after ([\d.]+) s: .*PEER_LOST: rank 1 \(host \S+, pid (\d+)\) has died",
        outcome.output,
    )
    assert len(lost) == 2, outcome.output
    assert all(float(seconds) < 2 for seconds, _ in lost)
    assert f"killed by {signal.SIGKILL.name}" in outcome.output


def test_importing_mydist_does_not_load_the_backend(tmp_path: Path) -> None:
    text = "import sys, mydist; assert not {'torch', 'mydist._c10d'} & set(sys.modules)"
    run(
        [sys.executable, "-c", text], timeout=60, env={"HOME": os.fspath(tmp_path)}
    ).expect_success()
