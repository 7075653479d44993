"""Whichever path the data takes, the results have the same bits, and the right ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multiproc.conftest import missing_backends
from multiproc.job import WORKERS, launch

EVERY_PATH = str(WORKERS / "every_path.py")

KERNELS = ("portable", "avx2", "avx512")
FROZEN = {"MYDIST_FREEZE_AFTER": "2", "MYDIST_STALL_WARNING_SECONDS": "600"}
NEGOTIATED = {"MYDIST_FREEZE_AFTER": "0"}
SHARED: dict[str, dict[str, str]] = {
    "auto": {},
    "attach": {"MYDIST_CROSS_MEMORY_ATTACH": "on"} | FROZEN,
    "slots": {"MYDIST_CROSS_MEMORY_ATTACH": "off"} | NEGOTIATED,
    "unfused": {"MYDIST_FUSION_THRESHOLD_MB": "0"},
    **{kernels: {"MYDIST_SIMD": kernels} for kernels in KERNELS},
}
SOCKETS = {"MYDIST_SHARED_MEMORY": "0", "MYDIST_CONTROLLER": "gloo"}
# Sums over several hosts have another order (docs/decisions/0012), the same for all these.
HOSTS = {"MYDIST_CONTROLLER": "gloo", "TEST_RANKS_PER_HOST": "2", "MYDIST_SHARED_MEMORY": "1"}


def by_path(np: int, folder: Path, paths: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """What each rank reports of each path."""
    env = {"MYDIST_CONTROLLER": "auto"}
    launch(np, "local", EVERY_PATH, str(folder), json.dumps(paths), timeout=200, env=env)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(np)]


def expect_equal_bits(ranks: list[dict[str, Any]], paths: dict[str, dict[str, str]]) -> None:
    for rank, report in enumerate(ranks):
        ran = set(report)
        assert ran >= set(paths) - set(KERNELS), ran
        widest = max((report[name]["kernels"] for name in ran), key=KERNELS.index)
        assert ran >= set(paths) & set(KERNELS[: KERNELS.index(widest) + 1]), ran
        for name in ran & set(KERNELS):
            assert report[name]["kernels"] == name
        first = next(iter(report.values()))["results"]
        for name, path in report.items():
            different = [call for call in first if path["results"][call] != first[call]]
            assert path["results"].keys() == first.keys()
            assert not different, f"rank {rank}, {name}: other bits in {different}"
    for report in ranks:  # The schedules are what they are called.
        assert report["slots"]["frozen_steps"] == 0
        assert (report["attach"]["frozen_steps"] > 0) == (len(ranks) > 1)
    # What gives everybody the same must have done so.
    for call in ("Sum 70000 torch.float32", "Adasum 70000", "grouped", "allgather 3000"):
        assert len({report["auto"]["results"][call] for report in ranks}) == 1, call


@pytest.mark.parametrize("np", [1, 2, 3, 4, 8])
def test_results_do_not_depend_on_the_path(np: int, tmp_path: Path) -> None:
    paths = dict(SHARED)
    if "gloo" not in missing_backends():
        paths["sockets"] = SOCKETS
    ranks = by_path(np, tmp_path, paths)
    expect_equal_bits(ranks, paths)
    if np > 1:  # The paths are what they are called.
        assert "process_vm_readv" in ranks[0]["attach"]["path"]
        assert "process_vm_readv" not in ranks[0]["slots"]["path"]


@pytest.mark.parametrize("backend", ["gloo"])
def test_results_across_hosts_do_not_depend_on_the_path(backend: str, tmp_path: Path) -> None:
    paths = {name: HOSTS | path for name, path in SHARED.items()}
    no_memory = {"MYDIST_SHARED_MEMORY": "0", "MYDIST_HIERARCHICAL_ALLREDUCE": "1"}
    paths["sockets"] = HOSTS | no_memory
    expect_equal_bits(by_path(4, tmp_path, paths), paths)
