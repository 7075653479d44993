"""What a job records about itself: the timeline, and the counters of the engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch  # noqa: F401  (the extension needs torch's libraries to be loaded)

from .. import _C
from .error_text import wrong_type

__all__ = ["start_timeline", "stats", "stop_timeline"]


_more_stats: list[Callable[[], dict[str, float]]] = []


def add_stats(more: Callable[[], dict[str, float]]) -> None:
    """Has stats() tell what the function gives, too."""
    _more_stats.append(more)


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts recording what the engines of all ranks do into one Chrome-trace file.

    Args:
        file_path: written by rank 0; the calls of other ranks have no effect. Opens in Perfetto.
        mark_cycles: also record each time the engine wakes up.

    On rank 0 the call returns when all collectives submitted from now on will be recorded. A second
    start begins a new file. A path that cannot be written is one warning; training goes on.

    Raises:
        ValueError: before init(), or `file_path` is empty.
        TypeError: `file_path` is no path.
    """
    if not isinstance(file_path, (str, os.PathLike)):
        raise wrong_type("start_timeline: file_path", file_path, "a str or path")
    if not os.fspath(file_path):
        raise ValueError("start_timeline: file_path is empty, expected the path of a file")
    _C.start_timeline(os.path.abspath(file_path), bool(mark_cycles))


def stop_timeline() -> None:
    """Ends the recording; what rank 0 decides counts. ValueError before init().

    On rank 0 the call returns when this rank's events are in the file. Those of the other ranks
    follow within moments, at the latest when shutdown() returns; the file is valid JSON throughout.
    """
    _C.stop_timeline()


def stats() -> dict[str, Any]:
    """What this rank's engine has counted since init().

    Keys: control_messages_sent, control_messages_received, control_bytes_sent, cache_hits,
    cache_misses, frozen_steps (whole steps without negotiation, see MYDIST_FREEZE_AFTER), thaws
    (returns to negotiation), host_votes_sent and host_votes_received (of the control messages those
    between hosts in steps without negotiation: one word per bucket, to and from each other host, on
    the lowest rank of a host; 0 elsewhere and in a job of one host), wakeups (of the engine's
    thread), hand_overs (waiting callers that left the engine to another thread), batches, tensors,
    tensor_bytes; inter_host_messages_sent and inter_host_bytes_sent: what collectives made
    this rank send to ranks on other hosts; pack_bytes: what allreduces copied to fuse tensors that
    do not lie one after the other, or to cast them; most_staged_chunks: how many chunks of a tensor
    on a GPU were on their way to the host at once, before they were exchanged, at most;
    strategy_rounds: means over ranks that strategies of optimizers have ended; wait_us:
    microseconds that submitted tensors have waited for other ranks to be ready. The rank that the
    others wait for has the smallest number; overflows: collectives in which this rank reduced
    finite numbers to infinite ones, in host memory (a warning names the first); group_operations,
    group_bytes, group_messages_sent, group_messages_received and group_message_bytes: of the
    process groups of torch.distributed, see mydist.c10d.stats().
    Once there is a DistributedOptimizer: codec_raw_bytes, what this rank would have sent without
    codecs, codec_wire_bytes, what it has sent in place of that, and codec_s, seconds of encoding
    and decoding; all 0 without a codec.
    Once a table of the parameter server exists: ps_push_bytes, ps_pull_bytes, ps_wait_us
    (microseconds that calls have waited for servers), ps_repeated (requests sent again after a
    broken connection), ps_staleness_mean and ps_staleness_max over the pushes of this rank.
    ValueError before init().
    """
    counted: dict[str, Any] = {**_C.stats()}
    for more in _more_stats:
        counted.update(more())
    return counted
