"""Counters of codecs since init(), for mydist.stats()."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...job.recording import add_stats
from ...job.topology import when_job_ends

_ZERO = {"codec_raw_bytes": 0, "codec_wire_bytes": 0, "codec_s": 0.0}
_counts: dict[str, float] = dict(_ZERO)


def count(raw_bytes: int, wire_bytes: int) -> None:
    """Of one exchange: what this rank would have sent as it is, and what it has sent."""
    _counts["codec_raw_bytes"] += raw_bytes
    _counts["codec_wire_bytes"] += wire_bytes


@contextmanager
def timed() -> Iterator[None]:
    """The time within counts as that of codecs."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        _counts["codec_s"] += time.perf_counter() - begin


add_stats(lambda: dict(_counts))
when_job_ends(lambda: _counts.update(_ZERO))
