"""main_rank_first: one rank prepares what all others then find ready."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..collectives.objects import allgather_object
from ..errors import MydistError
from ..job.error_text import text_of
from ..job.topology import local_rank, rank

__all__ = ["main_rank_first"]


@contextlib.contextmanager
def main_rank_first(local: bool = False) -> Iterator[bool]:
    """Rank 0 runs the body of the `with` first, the others when it has finished.

        with md.main_rank_first():
            dataset = FashionMNIST(root, download=True)  # The others find it downloaded.

    All ranks must enter it; the body must not call collectives, which the waiting ranks cannot
    join. While rank 0 is busy the others report a stall every now and then, and
    MYDIST_STALL_SHUTDOWN_SECONDS, if set, bounds the wait.

    Args:
        local: local rank 0 of every host first, for what is stored on each host.

    Yields:
        Whether this rank is one of those that go first.

    Raises:
        MydistError: the body failed on a rank that went first; raised on all ranks but that one,
            which raises its own error, and names it. The body is not run on those that waited.
        ValueError: before mydist.init().
    """
    first = (local_rank() if local else rank()) == 0
    if not first:
        _meet("")
        yield False
        return
    try:
        yield True
    except BaseException as error:
        # If the others cannot be told any more, this error is still the one to show.
        with contextlib.suppress(MydistError):
            _meet(text_of(error))
        raise
    _meet("")


def _meet(failure: str) -> None:
    """Waits for all ranks. Raises MydistError when a rank came with a failure."""
    failures = allgather_object(failure, name="main_rank_first")
    failed = [f"rank {sender}: {text}" for sender, text in enumerate(failures) if text]
    if failed:
        raise MydistError(
            "main_rank_first: the body failed on the rank that ran it first, so the other ranks do "
            f"not run it: {'; '.join(failed)}. The traceback is in the output of that rank"
        )
