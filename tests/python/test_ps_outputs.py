"""Results of tables in memory of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mydist.ps.host_tensors import prepare_output

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def flags_at(address: int) -> list[str]:
    """Of the mapping around it, as the kernel tells them."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first:
            low, high = (int(end, 16) for end in first.split("-"))
            is_inside = low <= address < high
        elif is_inside and first == "VmFlags:":
            return rest.split()
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.skipif(not _HUGE_PAGES.exists(), reason="the kernel has no transparent huge pages")
def test_a_large_result_asks_for_large_pages_and_a_small_one_does_not() -> None:
    for mebibytes, asks in ((64, True), (4, False)):
        shape = torch.Size([mebibytes << 18])
        target, finish = prepare_output("pull", None, shape, lambda *_: torch.empty(0))
        assert ("hg" in flags_at(target.data_ptr() + target.nbytes // 2)) == asks, mebibytes
        assert finish() is target
