"""Meter: what encoding saves and what it costs, measured. All meters together are in stats()."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...job.recording import add_stats
from ...job.topology import when_job_ends

_ZERO = {"codec_raw_bytes": 0, "codec_wire_bytes": 0, "codec_s": 0.0}
_totals: dict[str, float] = dict(_ZERO)


class Meter:
    """Of one optimizer, or one strategy. All calls come from the thread that trains."""

    def __init__(self) -> None:
        self._own: dict[str, float] = dict(_ZERO)

    def count(self, raw_bytes: int, wire_bytes: int) -> None:
        """Of one exchange: what this rank would have sent as it is, and what it has sent."""
        self._add("codec_raw_bytes", raw_bytes)
        self._add("codec_wire_bytes", wire_bytes)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """The time within counts as that of encoding and decoding."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._add("codec_s", time.perf_counter() - begin)

    def text(self) -> str:
        """What it saves, and on which links that is worth its time; empty before the first step."""
        raw, wire, seconds = self._own.values()
        if not raw or not seconds:
            return ""
        gbit_per_s = 8e-9 * (raw - wire) / seconds
        pays = f"on links below {gbit_per_s:.3g} Gbit/s" if gbit_per_s > 0 else "on no link"
        return (
            f"this rank sends {wire / raw:.3g} of the bytes; encoding and decoding take "
            f"{seconds * 1e3 / (raw / (1 << 20)):.3g} ms a MiB, so it pays {pays}"
        )

    def _add(self, key: str, value: float) -> None:
        self._own[key] += value
        _totals[key] += value


add_stats(lambda: dict(_totals))
when_job_ends(lambda: _totals.update(_ZERO))
