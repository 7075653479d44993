"""A backward that not all ranks run ends with an error naming the gradient and who is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deep import deep

from multiproc.job import launch

# Rank 1's input is a constant, so nothing is recorded there and its backward is only local. It
# reads a named pipe until rank 0 has its error; then the job goes on.
SCRIPT = """
import pathlib, sys, torch, mydist as md
md.init()
folder = pathlib.Path(sys.argv[1])
x = torch.ones(3, requires_grad=md.rank() == 0)
own = torch.ones(1, requires_grad=True)
y = md.allreduce(x, name="activation")
text = "no error"
try:
    (y.sum() * own).backward()
except md.CollectiveTimeoutError as error:
    text = str(error)
    assert error.failure["finding"] == "late", error.failure
    assert error.failure["hint"].startswith("Call the same collectives on every rank"), error
    assert error.failure["elapsed"] > 1, error.failure
    assert "The last collective of rank 1 was allreduce 'activation', " in text, text
    last = error.failure["progress"][1]
    assert (last["operation"], last["tensor"]) == ("allreduce", "activation"), error.failure
(folder / f"rank{md.rank()}.txt").write_text(text)
if md.rank() == 0:
    (folder / "done").write_bytes(b"")
else:
    (folder / "done").read_bytes()
assert md.allreduce(torch.ones(1), op=md.Sum).item() == 2
"""


@pytest.mark.parametrize("backend", ["gloo", deep("mpi")])
def test_a_rank_that_recorded_nothing_is_named(backend: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "done")
    env = {"MYDIST_STALL_WARNING_SECONDS": "1", "MYDIST_STALL_SHUTDOWN_SECONDS": "2"}
    launch(2, backend, "-c", SCRIPT, str(tmp_path), timeout=60, env=env).expect_success()
    text = (tmp_path / "rank0.txt").read_text()
    assert "allreduce 'activation.gradient' waits for rank 1" in text, text
    assert (tmp_path / "rank1.txt").read_text() == "no error"
