"""Strategies whose model is on servers: the parameters of an optimizer as one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...ps.consistency import Async, Consistency
from ...ps.rules import Rule
from .job import JobTable
from .part import Tensors
from .strategy import Strategy


class ServedStrategy(Strategy):
    """The base of strategies that push to a table with all parameters, and read from it.

    The table is float32 and has the parameters one after the other. It is created at the end of the
    first step, which is collective: each rank takes at least one step. Later steps are not.

    The anchor is the start, and then the model of the last `finish()`: the table as all ranks see
    it when each of them has called it. The rule goes on with its state from there. A checkpoint has
    what rank 0 has read last; the state of the rule begins anew then.
    """

    # Until `begin`; a strategy that is served or not, as its settings say, may stay so.
    _seen = torch.empty(0, dtype=torch.float32, device="cpu")  # What this rank has read last.
    _table: JobTable | None = None
    _is_restored = _has_left = False

    def served_rule(self) -> Rule:
        """What the servers do with what is pushed; known from `begin` on."""
        raise NotImplementedError

    def served_consistency(self) -> Consistency:
        """Which reads wait for other ranks."""
        return Async()

    def begin(self, job: Any) -> None:
        """Raises ValueError for complex parameters, which tables cannot hold."""
        super().begin(job)
        (self._part,) = self.parts
        for flat in self._part.anchor:
            if flat.is_complex():
                raise ValueError(
                    f"{type(self).__name__}: a parameter is of dtype {flat.dtype}, and the servers "
                    "hold float32; leave it out of the optimizer"
                )
        self._seen = self._vector(self._part.anchor)

    def push(self, flats: Sequence[torch.Tensor] | None) -> None:
        """Gives the servers what has the shapes of the part's flat tensors; None: only a clock."""
        if (table := self.open()) is not None:
            table.push(None if flats is None else self._vector(flats))

    def pull(self) -> Tensors:
        """The parameters of the servers, as flat tensors."""
        if (table := self.open()) is not None:
            table.pull(out=self._seen)
        return self.flats(self._seen)

    def push_pull(self, flats: Sequence[torch.Tensor] | None) -> Tensors:
        """Both at once."""
        if (table := self.open()) is not None:
            table.push_pull(None if flats is None else self._vector(flats), out=self._seen)
        return self.flats(self._seen)

    def refuse(self) -> None:
        """The clock goes on, so that Sync and SSP hold no other rank."""
        self.push(None)

    def leave(self) -> None:
        """The other ranks do not wait for this one any more."""
        if self._table is not None:
            self._table.finish()
            self._has_left = True

    def settle(self) -> None:
        """The same, before ranks meet in `finish`."""
        self.leave()

    def finish(self) -> None:
        """The anchors become the parameters of the servers; buffers become their mean."""
        model = self.pull()
        # No rank leaves this mean, and pushes, before all have read.
        self.job.average([], "finish")
        for anchor, flat in zip(self._part.anchor, model, strict=True):
            anchor.copy_(flat)

    def finished(self) -> None:
        """Parameters of a checkpoint that has none for this rank are what the servers start at."""
        if self._is_restored:
            self._part.write(self.flats(self._seen))

    def state_dict(self) -> dict[str, Any]:
        """What this rank has read last, float32, in one vector."""
        return {"model": self._seen.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next step creates a table with this model; without one it starts at the anchor."""
        self._seen.copy_(state.get("model", self._vector(self._part.anchor)))
        self._table, self._is_restored, self._has_left = None, True, False

    def bytes(self) -> int:
        """The anchor, and what was read last."""
        return super().bytes() + self._seen.nbytes

    def places(self) -> str:
        """Where the table lies, for mydist.explain()."""
        shares = [] if self._table is None else self._table.explain()
        return "".join(
            f"; server {server} has {bytes_there} bytes of them in pieces: {pieces}"
            for server, pieces, bytes_there in shares
        )

    def open(self) -> JobTable | None:
        """The table; None where there is no parameter.

        The first call creates it, and is collective; so is the first one after `leave`.
        """
        if self._table is None and self._seen.numel():
            rule, consistency = self.served_rule(), self.served_consistency()
            self._table = self.job.table("parameters", self._seen, rule, consistency)
        if self._table is not None and self._has_left:
            self._table.resume()
            self.job.gather([])  # A push before all have resumed would not wait for the others.
        self._is_restored = self._has_left = False
        return self._table

    def _vector(self, flats: Sequence[torch.Tensor]) -> torch.Tensor:
        """One float32 tensor on the host; a copy."""
        whole = torch.empty(sum(flat.numel() for flat in flats), dtype=torch.float32, device="cpu")
        start = 0
        for flat in flats:
            whole[start : start + flat.numel()].copy_(flat)
            start += flat.numel()
        return whole

    def flats(self, vector: torch.Tensor) -> Tensors:
        """Copies with the dtypes and devices of the part."""
        anchors = self._part.anchor
        pieces = torch.split(vector, [anchor.numel() for anchor in anchors])
        return [torch.empty_like(a).copy_(p) for a, p in zip(anchors, pieces, strict=True)]
