"""A forked child is no rank: it gets a clear error and does no harm to its parent."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from soon import soon

import mydist as md

pytestmark = [
    pytest.mark.usefixtures("job"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


def in_child(call: Callable[[], object]) -> str:
    """What the call raises in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            text = "nothing was raised"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


@pytest.mark.parametrize(
    "call",
    [
        md.barrier,
        md.init,
        md.join,
        lambda: md.allreduce(torch.ones(2)),
        lambda: md.allgather_async(torch.ones(2)),
        lambda: md.broadcast_(torch.ones(2), 0),
        lambda: md.alltoall(torch.ones(2)),
    ],
    ids=["barrier", "init", "join", "allreduce", "allgather", "broadcast", "alltoall"],
)
def test_calls_in_the_child_are_refused(call: Callable[[], object]) -> None:
    with soon():
        text = in_child(call)
    assert text.startswith("ValueError: ") and "is a child of rank 0" in text, text
    assert f"(pid {os.getpid()}); only the rank itself " in text


def test_what_only_the_engine_knows_is_refused() -> None:
    text = in_child(md.stats)
    assert text.startswith("ValueError: this process was forked after mydist.init()")


def test_a_child_of_a_child_knows_the_numbers() -> None:
    def look() -> None:
        assert in_child(lambda: print(md.rank(), md.size())) == "nothing was raised"

    assert in_child(look) == "nothing was raised"


def test_the_parents_handles_are_not_the_childs() -> None:
    handle = md.allreduce_async(torch.ones(2))
    text = in_child(lambda: md.synchronize(handle))
    assert text.startswith("ValueError: this process was forked after mydist.init()")
    assert md.synchronize(handle).tolist() == [1.0, 1.0]


def test_the_child_is_not_initialized_and_its_end_is_not_the_parents() -> None:
    def leave() -> None:
        assert not md.is_initialized()
        md.shutdown()

    assert in_child(leave) == "nothing was raised"
    assert md.is_initialized()
    assert md.allreduce(torch.ones(1)).item() == 1.0


def test_data_loader_workers_may_fork() -> None:
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=1
    )
    seen = [md.allreduce(batch).tolist() for (batch,) in loader]
    assert seen == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
