"""RowTable: an embedding that may be larger than any worker, row by row on the servers."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch

from ..job.error_text import wrong_type
from ..job.process_set import ProcessSet, global_process_set
from .consistency import Async, Consistency
from .host_tensors import host_floats, prepare_output
from .initial_values import Initial, Uniform
from .ranges import check_between
from .rules import Rule
from .table import BaseTable, TableCall

__all__ = ["RowTable"]

_MOST_ROWS = (1 << 63) - 1
_MOST_WIDTH = 1 << 20
_MOST_SEED = (1 << 64) - 1


class RowTable(BaseTable):
    """Rows of equal width; a pull or push moves only the rows that it names.

    A row is made when it is first touched. Its start value depends on the seed, the name and the
    number of the row alone. Rows are placed on the servers in blocks of 256.
    """

    _empty_push = "push() without ids"

    def __init__(
        self,
        name: str,
        rows: int,
        width: int,
        rule: Rule | None = None,
        init: Initial | None = None,
        consistency: Consistency | None = None,
        nan: str = "refuse",
        seed: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Creates it. Collective, as Table().

        Args:
            name: as for Table.
            rows: how many there may be; up to 2**63 - 1.
            width: float32 elements of each row.
            rule: what the servers do with the gradient of a row. None: the rows keep their start
                values, and can be pulled only.
            init: start values; Uniform(0.01) unless said otherwise.
            consistency: Async() unless said otherwise.
            nan: as for Table.
            seed: of the start values, from 0 to 2**64 - 1; equal on all ranks.
            process_set: as for Table.

        Raises: as Table().
        """
        super().__init__(name, rule, consistency or Async(), nan, process_set)
        what = f"RowTable '{name}'"
        self.rows = check_between(f"{what}: rows", rows, 1, _MOST_ROWS)
        self.width = check_between(f"{what}: width", width, 1, _MOST_WIDTH)
        check_between(f"{what}: seed", seed, 0, _MOST_SEED)
        start = init if init is not None else Uniform()
        if not isinstance(start, Initial):
            raise wrong_type(f"{what}: init", init, "md.ps.Uniform(0.01) or the like")
        sizes = {
            "elements": 0,
            "piece_elements": 0,
            "rows": self.rows,
            "width": self.width,
            "init": (start.kind, float(start.scale), seed),
        }
        self._declare(sizes, None)

    def places(self) -> str:
        """See BaseTable."""
        return f"up to {self.rows} rows of {self.width}, in blocks of 256 on all servers"

    def pull(
        self, ids: torch.Tensor, out: torch.Tensor | None = None, priority: int = 0
    ) -> torch.Tensor:
        """The rows of these numbers, [n, width].

        Args:
            ids: [n], integers from 0 to rows - 1; a row may occur more than once.
            out: where they are written, if given: float32 [n, width].
            priority: as for Table.push.

        Raises:
            ValueError: a number is no row of the table, a shape differs, or the priority is not
                allowed.
            TypeError: `ids` are no integers, `out` is no float32 tensor, or the priority is no int.
            PeerLostError: a server, or with Sync a worker, is gone.
            CollectiveTimeoutError: MYDIST_STALL_SHUTDOWN_SECONDS have passed.
        """
        return cast(torch.Tensor, self._start("pull", ids, None, out, priority).wait())

    def pull_async(
        self, ids: torch.Tensor, out: torch.Tensor | None = None, priority: int = 0
    ) -> int:
        """As pull; returns a handle for synchronize()."""
        return self._start("pull", ids, None, out, priority).handle()

    def push(self, ids: torch.Tensor, gradients: torch.Tensor, priority: int = 0) -> None:
        """Gives the servers gradients of rows. Those of a row that occurs twice are added.

        Args:
            ids: as for pull.
            gradients: float32 [n, width].
            priority: as for Table.push.

        Raises: as pull; ValueError also where push of a Table raises it.
        """
        self._start("push", ids, gradients, None, priority).wait()

    def push_async(self, ids: torch.Tensor, gradients: torch.Tensor, priority: int = 0) -> int:
        """As push; returns a handle for synchronize()."""
        return self._start("push", ids, gradients, None, priority).handle()

    def push_pull(
        self,
        ids: torch.Tensor,
        gradients: torch.Tensor,
        out: torch.Tensor | None = None,
        priority: int = 0,
    ) -> torch.Tensor:
        """A push, and the same rows after it."""
        return cast(torch.Tensor, self._start("push_pull", ids, gradients, out, priority).wait())

    def push_pull_async(
        self,
        ids: torch.Tensor,
        gradients: torch.Tensor,
        out: torch.Tensor | None = None,
        priority: int = 0,
    ) -> int:
        """As push_pull; returns a handle for synchronize()."""
        return self._start("push_pull", ids, gradients, out, priority).handle()

    def embedding(self, ids: torch.Tensor) -> torch.Tensor:
        """As torch.nn.functional.embedding: pulls the rows; backward() pushes their gradients.

        Args:
            ids: integers of any shape.

        Returns:
            float32 [*ids.shape, width]; without a gradient where the table has no rule.

        Raises: as pull, and in backward() as push.
        """
        is_trained = self.rule is not None and torch.is_grad_enabled()
        anchor = torch.empty(0, dtype=torch.float32, device="cpu", requires_grad=is_trained)
        rows = _Embedding.apply(self, ids.reshape(-1), anchor)  # type: ignore[no-untyped-call]
        return cast(torch.Tensor, rows.view(*ids.shape, self.width))

    def _start(
        self,
        kind: str,
        ids: object,
        gradients: torch.Tensor | None,
        out: torch.Tensor | None,
        priority: int,
    ) -> TableCall:
        call = f"{kind} of table '{self.name}'"
        self._check_call(call, kind, priority)
        rows = _row_numbers(call, ids)
        shape = torch.Size([rows.numel(), self.width])
        check = partial(_floats, call, shape)
        sent = None
        if gradients is not None:
            sent = check("gradients", gradients)
            if not self._check_finite(call, sent, shape):
                sent = None
        elif kind != "pull":
            raise wrong_type(f"{call}: gradients", gradients, "a torch.Tensor")
        if kind != "pull" and sent is None:
            # The clock moves without a gradient; what is to be pulled follows.
            operation = self._client.submit_to_all("push", self._number)
            if kind == "push":
                return TableCall(self._client, operation)
            kind = "pull"
        target = finish = None
        if kind != "push":
            target, finish = prepare_output(call, out, shape, check)
        operation = self._client.submit_rows(
            kind,
            self._number,
            rows.data_ptr(),
            rows.numel(),
            0 if sent is None else sent.data_ptr(),
            0 if target is None else target.data_ptr(),
            priority,
        )
        return TableCall(self._client, operation, finish, rows, sent, target)


class _Embedding(torch.autograd.Function):
    """The rows, whose gradient is pushed."""

    @staticmethod
    def forward(ctx: Any, table: RowTable, ids: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        """Pulls. `anchor` makes autograd call backward: the rows are no parameters here."""
        ctx.table = table
        ctx.save_for_backward(ids)
        return table.pull(ids)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        """Pushes."""
        (ids,) = ctx.saved_tensors
        ctx.table.push(ids, gradients[0])
        return None, None, None


def _row_numbers(call: str, ids: object) -> torch.Tensor:
    if not isinstance(ids, torch.Tensor):
        raise wrong_type(f"{call}: ids", ids, "a tensor of integers in one dimension")
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"{call}: ids is {ids.dtype}, expected integers")
    if ids.dim() != 1:
        raise ValueError(f"{call}: ids has shape {list(ids.shape)}, expected one dimension")
    return ids.detach().to("cpu", torch.int64).contiguous()


def _floats(call: str, shape: torch.Size, argument: str, tensor: object) -> torch.Tensor:
    return host_floats(f"{call}: {argument}", tensor, shape, f"expected {list(shape)}")
