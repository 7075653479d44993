"""Table: a tensor that the servers hold, in pieces."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from ..collectives.arguments import check_process_set
from ..collectives.handles import remember_waiter
from ..collectives.objects import allgather_object
from ..errors import MismatchError
from ..job import topology
from ..job.error_text import difference_text
from ..job.process_set import ProcessSet, global_process_set
from . import binding, job_servers
from .consistency import Async, Consistency, Sync, check_consistency
from .host_tensors import host_floats, prepare_output
from .ranges import check_between
from .rules import Rule, check_rule

if TYPE_CHECKING:
    from .. import _ps

__all__ = ["Table"]

_MAX_NAME_BYTES = 256
_NAN = ("refuse", "skip", "allow")
_PRIORITIES = -(1 << 31), (1 << 31) - 1
# Calls whose wait Ctrl-C has ended.
_interrupted: list[TableCall] = []


class BaseTable:
    """What tables of both kinds have in common: their servers, and the calls that end them."""

    _empty_push: str  # The call that moves the clock alone.

    def __init__(
        self, name: Any, rule: Any, consistency: Any, nan: str, process_set: ProcessSet
    ) -> None:
        what = type(self).__name__
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= _MAX_NAME_BYTES:
            expected = f"a text of 1 to {_MAX_NAME_BYTES} bytes"
            raise ValueError(f"{what}: name is {name!r}, expected {expected}")
        if rule is not None:
            check_rule(f"{what} '{name}': rule", rule)
        check_consistency(f"{what} '{name}': consistency", consistency)
        if nan not in _NAN:
            raise ValueError(f"{what} '{name}': nan is {nan!r}, expected one of {', '.join(_NAN)}")
        check_process_set(f"{what} '{name}'", process_set)
        self.name: str = name
        self.rule: Rule | None = rule
        self.consistency: Consistency = consistency
        self._nan = nan
        self._is_closed = False
        self._holds_name = False  # No other table may have it meanwhile.
        self._process_set = process_set

    def _declare(self, sizes: dict[str, Any], start: torch.Tensor | None) -> None:
        """Creates the table on the servers. Collective; see the classes for its errors."""
        servers = self._servers = job_servers.current()
        self._client = servers.client
        spec = binding.load().TableSpec(
            name=self.name,
            rule=("none", []) if self.rule is None else (self.rule.name, self.rule.options()),
            consistency=self.consistency.kind,
            bound=self.consistency.bound,
            ranks=self._process_set.ranks,
            **sizes,
        )
        # A rank whose arguments are wrong does not come to this point.
        self._number = self._agree(sizes)
        servers.open_tables.add(self)
        worker = self._process_set.rank()
        address = 0 if start is None else start.data_ptr()
        # The others open what the first one has created; its error is theirs.
        failure: Exception | None = None
        for creates in (True, False):
            if creates == (worker == 0):
                failure = self._try_declare(spec, worker, creates, address)
            self._share(failure)
        self._holds_name = True

    def _check_open(self, call: str) -> None:
        """Raises ValueError where the table cannot be used any more, or not in this process."""
        topology.refuse_in_child(call, "uses tables. Make the call in the rank's process")
        if self._is_closed:
            raise ValueError(f"{call}: the table has been closed; create it again to use it")
        if self._servers.has_left:
            raise ValueError(
                f"{call}: mydist.shutdown() ended the job that had the table; create the table "
                "again after mydist.init()"
            )

    def _check_call(self, call: str, kind: str, priority: int) -> None:
        """Raises what every pull, push and push_pull raises before it looks at its tensors."""
        self._check_open(call)
        check_between(f"{call}: priority", priority, *_PRIORITIES)
        if kind != "pull" and self.rule is None:
            raise ValueError(
                f"{call}: the table has no rule that applies a push; create it with one, such as "
                "rule=md.ps.SGD(lr=0.1) or rule=md.ps.Assign()"
            )

    def _to_all(self, kind: str) -> TableCall:
        self._check_open(f"{kind} of table '{self.name}'")
        return TableCall(self._client, self._client.submit_to_all(kind, self._number))

    def _try_declare(
        self, spec: _ps.TableSpec, worker: int, creates: bool, address: int
    ) -> Exception | None:
        try:
            self._client.declare(self._number, spec, worker, creates, address)
        except Exception as error:
            return error
        return None

    def _share(self, failure: Exception | None) -> None:
        """Raises the own error, else the first of another rank. Collective."""
        label = f"ps.table.{self.name}.created"
        errors = allgather_object(failure, name=label, process_set=self._process_set)
        first = failure or next((error for error in errors if error is not None), None)
        if first is not None:
            raise first

    def _agree(self, sizes: dict[str, Any]) -> int:
        """The table's number. Collective.

        Raises an error on all ranks where they declare different tables, or one has the name in
        use.
        """
        what = f"{type(self).__name__} '{self.name}'"
        number = next(self._servers.numbers) if self._process_set.rank() == 0 else 0
        mine = f"{what}: {sizes}, {self.choice()}", self._has_name(), number
        told = allgather_object(mine, name=f"ps.table.{self.name}", process_set=self._process_set)
        ranks = self._process_set.ranks
        users = [rank for rank, (_, uses, _) in zip(ranks, told, strict=True) if uses]
        if users:
            raise ValueError(
                f"{what}: ranks {users} have a table of this name open; close() it, or take "
                "another name"
            )
        texts = [text for text, _, _ in told]
        by_rank = dict(zip(ranks, texts, strict=True))
        differing = sorted(set(texts))
        if len(differing) > 1:
            raise MismatchError(
                difference_text(
                    "the ranks declare different tables",
                    by_rank,
                    differing,
                    "Create it with the same arguments on all ranks.",
                )
            )
        return self._servers.take_number(told[0][2], what)

    def _has_name(self) -> bool:
        tables = self._servers.open_tables
        return any(table.name == self.name and table._holds_name for table in tables)

    def _check_finite(self, call: str, gradient: torch.Tensor, shape: torch.Size) -> bool:
        """Whether the gradient counts. Raises ValueError for one that is to be refused."""
        if self._nan == "allow":
            return True
        first = binding.load().first_not_finite(gradient.data_ptr(), gradient.numel())
        if first < 0:
            return True
        if self._nan == "skip":
            return False
        flat = torch.tensor(first, dtype=torch.int64, device="cpu")
        index = tuple(int(i) for i in torch.unravel_index(flat, shape))
        then = ""
        if not isinstance(self.consistency, Async):
            then = f". A program that goes on calls {self._empty_push}: other workers wait for it"
        raise ValueError(
            f"{call}: the gradient of worker {self._process_set.rank()} (rank "
            f"{self._process_set.ranks[self._process_set.rank()]}) is "
            f"{float(gradient.view(-1)[first])} at index {index}; nothing has been applied. "
            f'nan="skip" drops such gradients, nan="allow" applies them{then}'
        )

    def set_options(self, **options: Any) -> None:
        """Changes options of the rule, such as lr, from the next push on. One worker calls it.

        Raises:
            ValueError: there is no rule or no such option, or the rule would need another state.
        """
        call = f"set_options of table '{self.name}'"
        self._check_open(call)
        if self.rule is None:
            raise ValueError(f"{call}: the table has no rule; create it with one")
        rule = self.rule.changed(**options)
        before = dict(self.rule.options())
        changes = [
            (name, value)
            for name, value in rule.options()
            if name in options or before[name] != value
        ]
        operation = self._client.set_options(self._number, (rule.name, changes))
        self._client.wait(operation)
        self.rule = rule

    def finish(self) -> None:
        """This worker pushes no more: no other waits for it. Done by itself at shutdown().

        Raises:
            MydistError: a server is gone.
        """
        self._to_all("finish").wait()

    def resume(self) -> None:
        """This worker pushes again, after all workers have called finish().

        All of them call it before the first one pushes; a barrier between makes sure of that. They
        are at one clock then. The state of the rule stays.

        Raises:
            MydistError: a server is gone.
        """
        self._to_all("resume").wait()

    def close(self) -> None:
        """Frees the table on the servers once all workers have called it.

        Raises:
            MydistError: a server is gone.
        """
        call = self._to_all("remove")
        self._is_closed = True
        self._servers.open_tables.discard(self)
        call.wait()

    def staleness(self) -> tuple[int, float, int]:
        """How many pushes this worker has made, their mean staleness and the largest."""
        return self._client.table_stats(self._number)

    def close_with_owner(self) -> None:
        """Closes it when this object goes, without a wait and without an error."""
        self._holds_name = False
        # A child of this process has none of the client's threads.
        weakref.finalize(self, _remove, self._client, self._number, os.getpid()).atexit = False

    def stats(self) -> dict[str, float]:
        """What this worker has seen of the table.

        Returns:
            pushes; mean_staleness and most_staleness: updates by others between this worker's read
            of parameters and the update with the gradient of them.
        """
        self._check_open(f"stats of table '{self.name}'")
        pushes, mean, most = self.staleness()
        return {"pushes": pushes, "mean_staleness": mean, "most_staleness": most}

    def places(self) -> str:
        """Where it lies, for mydist.explain()."""
        raise NotImplementedError

    def choice(self) -> str:
        """What it is, for mydist.explain()."""
        rule = "no rule" if self.rule is None else repr(self.rule)
        return f"{rule}, {self.consistency!r}"


def _remove(client: _ps.Client, number: int, pid: int) -> None:
    if os.getpid() == pid:
        client.submit_to_all("remove", number)


class TableCall:
    """A call on a table that is under way; it keeps the tensors that it reads and writes."""

    def __init__(
        self,
        client: _ps.Client,
        operation: _ps.Operation,
        finish: Callable[[], Any] | None = None,
        *kept: Any,
    ) -> None:
        self._client, self._operation = client, operation
        self._finish, self._kept = finish, kept

    def handle(self) -> int:
        """For synchronize(); the call goes on meanwhile."""
        self._client.attend()
        return remember_waiter(self)

    def is_over(self) -> bool:
        """Whether wait() would not block."""
        return self._operation.is_over()

    def wait(self) -> Any:
        """Blocks; gives what the call gives, or raises its error."""
        try:
            self._client.wait(self._operation)
        finally:
            if not self._operation.is_over():  # Ctrl-C: it goes on, and needs its tensors.
                _interrupted[:] = [call for call in _interrupted if not call.is_over()]
                _interrupted.append(self)
        return None if self._finish is None else self._finish()


class Table(BaseTable):
    """A tensor on the servers, cut into pieces that a hash ring places on them.

    Creating it is collective over the process set; the first one of the job is collective over all
    ranks. Rank 0 of the set gives the start value.
    """

    _empty_push = "push(None)"

    def __init__(
        self,
        name: str,
        like: torch.Tensor,
        rule: Rule | None = None,
        consistency: Consistency | None = None,
        nan: str = "refuse",
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Creates it.

        Args:
            name: of the table, the same on all ranks; unique in the job.
            like: its shape and, on the first rank of the set, its start value; float32.
            rule: what the servers do with a gradient. None: the table keeps its start value, and
                can be pulled only.
            consistency: Sync() unless said otherwise.
            nan: what happens to a gradient with NaN or infinite values: "refuse" raises ValueError
                at the worker, "skip" drops it and counts the clock, "allow" applies it.
            process_set: the workers; all of them call it.

        Raises:
            ValueError: an argument is not allowed; the text names it.
            TypeError: `like` is no float32 tensor, or another argument has another type.
            MismatchError: the ranks declare different tables; none is created.
            MydistError: there is no parameter server in this build, or one is gone.
        """
        super().__init__(name, rule, consistency or Sync(), nan, process_set)
        self._shape = like.shape if isinstance(like, torch.Tensor) else torch.Size()
        start = self._dense("Table", "like", like)
        if start.numel() == 0:
            raise ValueError(f"Table '{name}': like has no elements")
        module = binding.load()
        sizes = {
            "elements": start.numel(),
            "piece_elements": min(module.piece_elements(), start.numel()),
            "rows": 0,
            "width": 0,
            "init": ("zeros", 0.0, 0),
        }
        self._declare(sizes, start)

    @property
    def shape(self) -> torch.Size:
        """Of its tensor."""
        return self._shape

    def push(self, gradient: torch.Tensor | None, priority: int = 0) -> None:
        """Gives the servers a gradient. Returns when it is applied.

        Sync: returns when it is received, and the clock before it is complete.

        Args:
            gradient: float32, of the table's shape. None is a clock without one: nothing is
                applied, and workers that wait for this one go on.
            priority: what has a higher one is sent first; an int of 32 bits. Calls on one table
                stay in their order.

        Raises:
            ValueError: the table has no rule, the shape differs, the priority is not allowed, or
                the gradient is not finite (nan="refuse").
            TypeError: it is no float32 tensor, or the priority is no int.
            PeerLostError: a server, or with Sync a worker, is gone.
            CollectiveTimeoutError: MYDIST_STALL_SHUTDOWN_SECONDS have passed.
        """
        self._start("push", gradient, None, priority).wait()

    def push_async(self, gradient: torch.Tensor | None, priority: int = 0) -> int:
        """As push; returns a handle for synchronize(). The gradient must not change until then."""
        return self._start("push", gradient, None, priority).handle()

    def pull(self, out: torch.Tensor | None = None, priority: int = 0) -> torch.Tensor:
        """The parameters as they are, once the consistency allows.

        Args:
            out: where they are written, if given: float32 of the table's shape.
            priority: as for push.

        Raises: as push.
        """
        return cast(torch.Tensor, self._start("pull", None, out, priority).wait())

    def pull_async(self, out: torch.Tensor | None = None, priority: int = 0) -> int:
        """As pull; returns a handle for synchronize()."""
        return self._start("pull", None, out, priority).handle()

    def push_pull(
        self, gradient: torch.Tensor | None, out: torch.Tensor | None = None, priority: int = 0
    ) -> torch.Tensor:
        """A push, and the parameters after it; with Sync after the update of this clock.

        Args and raises: as push and pull.
        """
        return cast(torch.Tensor, self._start("push_pull", gradient, out, priority).wait())

    def push_pull_async(
        self, gradient: torch.Tensor | None, out: torch.Tensor | None = None, priority: int = 0
    ) -> int:
        """As push_pull; returns a handle for synchronize()."""
        return self._start("push_pull", gradient, out, priority).handle()

    def places(self) -> str:
        """See BaseTable."""
        return "; ".join(
            f"server {server}: {pieces} pieces, {held / (1 << 20):.4g} MiB"
            for server, pieces, held in self.explain()
        )

    def explain(self) -> list[tuple[int, int, int]]:
        """Where it lies: for each server its number, how many pieces it holds, and their bytes."""
        self._check_open(f"explain of table '{self.name}'")
        return self._client.shares(self._number)

    def _start(
        self,
        kind: str,
        gradient: torch.Tensor | None,
        out: torch.Tensor | None,
        priority: int,
    ) -> TableCall:
        call = f"{kind} of table '{self.name}'"
        self._check_call(call, kind, priority)
        check = partial(self._dense, call)
        sent = None
        if gradient is not None:
            sent = check("gradient", gradient)
            if not self._check_finite(call, sent, self._shape):
                sent = None
        target = finish = None
        if kind != "push":
            target, finish = prepare_output(call, out, self._shape, check)
        operation = self._client.submit(
            kind,
            self._number,
            0 if sent is None else sent.data_ptr(),
            0 if target is None else target.data_ptr(),
            priority,
        )
        return TableCall(self._client, operation, finish, sent, target)

    def _dense(self, call: str, argument: str, tensor: object) -> torch.Tensor:
        """See host_floats."""
        wanted = f"the table has {list(self._shape)}"
        return host_floats(f"{call}: {argument}", tensor, self._shape, wanted)
