"""Whichever path the data takes, the results have the same bits, and the right ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deep import deep

from multiproc.conftest import missing_backends
from multiproc.job import WORKERS, launch

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

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
# What is refused once stays so: they come last, in this order.
REFUSED = {
    f"refused {call}": {
        "TEST_REFUSED_CALLS": f"process_vm_{call}",
        "MYDIST_CROSS_MEMORY_ATTACH": "on",
        "MYDIST_LOG_LEVEL": "info",
    }
    for call in ("writev", "readv")
}
SOCKETS = {"MYDIST_SHARED_MEMORY": "0", "MYDIST_CONTROLLER": "gloo"}
# Over MPI alone, and where it carries what shared memory does not.
MPI = {"messages": {"MYDIST_SHARED_MEMORY": "0"}, "start": {"MYDIST_SHARED_MEMORY": "1"}}
# On several hosts: the same bits with each backend. "auto" goes by hosts first.
ACROSS_HOSTS = {
    "auto": {"MYDIST_SHARED_MEMORY": "1"},
    "hosts first, messages": {"MYDIST_SHARED_MEMORY": "0", "MYDIST_HIERARCHICAL_ALLREDUCE": "1"},
    "flat": {"MYDIST_SHARED_MEMORY": "1", "MYDIST_HIERARCHICAL_ALLREDUCE": "0"},
    "flat, messages": {"MYDIST_SHARED_MEMORY": "0"},
}


def by_path(
    np: int, folder: Path, paths: dict[str, dict[str, str]], backend: str = "local"
) -> tuple[list[dict[str, Any]], str]:
    """What each rank reports of each path, and the output."""
    env = {"MYDIST_CONTROLLER": "auto"} if backend == "local" else {}
    worker = (EVERY_PATH, str(folder), json.dumps(paths))
    run = launch(np, backend, *worker, timeout=200, env=env)
    run.expect_success()
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(np)]
    return ranks, run.output


def expect_equal_bits_over_mpi(
    ranks: list[dict[str, Any]], folder: Path, paths: dict[str, dict[str, str]]
) -> None:
    """MPI has a launcher of its own, hence a job of its own; `paths` lay out hosts as `ranks`."""
    folder = folder / "mpi"
    folder.mkdir()
    for rank, report in enumerate(by_path(len(ranks), folder, paths, "mpi")[0]):
        assert report.keys() == paths.keys()
        for name, path in report.items():
            for other in ranks[rank]:
                wanted = ranks[rank][other]["results"]
                assert path["results"].keys() == wanted.keys()
                different = [call for call in wanted if path["results"][call] != wanted[call]]
                assert not different, f"rank {rank}, {name} over MPI, {other}: {different}"


def expect_only_sums_to_differ(one_host: dict[str, str], several: dict[str, str]) -> None:
    """What docs/backends.md says of other hosts for the same ranks."""
    different = {call for call in one_host if one_host[call] != several[call]}
    assert "Sum 70000 torch.float32" in different
    summing = (
        "Sum",
        "Average",
        "Product",
        "scaled",
        "in place",
        "grouped",
        "flown",
        "repeated",
        "reduce",
    )
    integers = ("torch.int32", "torch.uint8")
    unexpected = {c for c in different if not c.startswith(summing) or c.endswith(integers)}
    assert not unexpected


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


@pytest.mark.parametrize("np", [3, *(deep(np) for np in (1, 2, 4, 5, 6, 7, 8))])
def test_results_do_not_depend_on_the_path(np: int, tmp_path: Path) -> None:
    paths = dict(SHARED)
    if "gloo" not in missing_backends():
        paths["sockets"] = SOCKETS
    paths |= REFUSED
    ranks, output = by_path(np, tmp_path, paths)
    expect_equal_bits(ranks, paths)
    if np == 3 and "mpi" not in missing_backends():
        expect_equal_bits_over_mpi(ranks, tmp_path, MPI)
    if np > 1:  # The paths are what they are called.
        assert "process_vm_readv" in ranks[0]["attach"]["path"]
        assert "process_vm_readv" not in ranks[0]["slots"]["path"]
        for call in ("writev", "readv"):
            refusal = f"process_vm_{call} was refused: Operation not permitted"
            assert refusal in ranks[0][f"refused {call}"]["path"]
            assert output.count(refusal) == 1, output


@pytest.mark.parametrize("backend", ["gloo"])
@pytest.mark.parametrize(("np", "per_host"), [(4, 2), deep(5, 2), deep(5, 3)])
def test_results_across_hosts_do_not_depend_on_the_path(
    np: int, per_host: int, backend: str, tmp_path: Path
) -> None:
    layout = {"TEST_RANKS_PER_HOST": str(per_host)}
    across = {name: layout | path for name, path in ACROSS_HOSTS.items()}
    over_gloo = {"MYDIST_CONTROLLER": backend}
    # Inside they reduce as one host does.
    inside = {name: SHARED[name] for name in ("auto", "attach", "slots")}
    paths = {name: across["auto"] | over_gloo | path for name, path in inside.items()}
    paths |= {name: over_gloo | path for name, path in across.items()}
    ranks, _ = by_path(np, tmp_path, paths | {"one host": SOCKETS})
    for report in ranks:
        one_host = report.pop("one host")["results"]
        expect_only_sums_to_differ(one_host, report["auto"]["results"])
    expect_equal_bits(ranks, paths)
    if "mpi" not in missing_backends():
        expect_equal_bits_over_mpi(ranks, tmp_path, across)
