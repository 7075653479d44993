"""Consistency: whether all ranks hold the same parameters, asked with one small allgather.

Ranks that train different numbers go on without any sign of it. Two hashes per rank, of what the
parameters are (names, shapes, dtypes, requires_grad) and of their values, show it; only when they
differ do the ranks exchange more, to name the parameters and the ranks. Buffers are left out, since
running statistics may differ. Hashes are compared, so a difference stays unseen with probability
2^-32; see `mydist.optim.value_hash`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..collectives import allgather
from ..collectives.arguments import check_process_set
from ..collectives.objects import allgather_object
from ..collectives.waits import join_count
from ..errors import MismatchError
from ..job import topology
from ..job.error_text import difference_text
from ..job.process_set import ProcessSet, global_process_set
from .gradient_names import is_named
from .value_hash import value_hash

__all__ = ["ConsistencyCheck", "check_consistency", "check_interval"]

_SAME_MODEL = "Build the same model on every rank."
_SAME_STRATEGY = "Pass the same strategy with the same settings to {} on every rank."
_BROADCAST = (
    "Make them equal with mydist.broadcast_parameters(model.state_dict(), root_rank=0) before the "
    "first step."
)
_DIVERGED = (
    "They were equal at the previous check, so some ranks changed them later: an update "
    "without reduced gradients, different learning rates or optimizer state "
    "(mydist.broadcast_optimizer_state), or operations that are not deterministic."
)


def check_consistency(
    parameters: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    process_set: ProcessSet = global_process_set,
) -> None:
    """Raises when the parameters are not the same on all ranks. Blocking; all ranks call it.

    Names, shapes, dtypes and requires_grad are compared, then the values bit by bit. Costs one
    pass over the values and an allgather of 24 bytes per rank.

    Args:
        parameters: a module, whose parameters are compared but not its buffers (running statistics
            may differ); or tensors of any shape and dtype by name, such as `model.state_dict()`
            or `model.named_parameters()`. Their order does not matter.
        process_set: the ranks that are compared.

    Raises:
        TypeError, ValueError: an argument is wrong, before any communication.
        MismatchError: on every rank of the set, naming the first parameter that differs and the
            ranks. The job can go on.
    """
    check_process_set("check_consistency", process_set)
    named = list(_named(parameters))
    _compare(_Comparison("check_consistency", named, process_set, _BROADCAST))


class ConsistencyCheck:
    """What an optimizer does about consistency: a check at its first step and at every Nth after.

    Owned by the optimizer. All calls come from the thread that trains and are collective.
    """

    def __init__(
        self,
        every: int,
        process_set: ProcessSet = global_process_set,
        communication: str = "",
        maker: str = "DistributedOptimizer",
    ) -> None:
        """every: 0 checks at the first step only, N > 0 also after each N steps, -1 never.

        communication: the optimizer's strategy with its settings, which is compared, too.
        maker: the function that made the optimizer; in messages.
        """
        self._every = every
        self._communication = communication
        self._maker = maker
        self._process_set = process_set
        self._step_count = 0
        self._since = 0  # Steps since ranks were last known to count alike.
        self._checked_at = -1
        self._joins = join_count()

    def at_step(self, parameters: Iterable[tuple[torch.Tensor, str]]) -> None:
        """Called before a step waits for its gradients; checks if it is due and not yet done.

        Args:
            parameters: parameters and their names; only read when a check is due.

        Raises:
            MismatchError: as `check_consistency`, saying at which step.
        """
        if self._every < 0 or self._checked_at == self._step_count or not self._is_due():
            return
        is_first = self._checked_at < 0
        call = f"check before step {self._step_count + 1} of the optimizer"
        named = [(name, tensor) for tensor, name in parameters]
        hint = _BROADCAST if is_first else _DIVERGED
        about = (self._communication, self._maker)
        _compare(_Comparison(call, named, self._process_set, hint, *about))
        self._checked_at = self._step_count  # Not before: a step that is tried again is checked.

    def step_done(self) -> None:
        """Called after every step."""
        self._step_count += 1
        self._since += 1

    def others_have_checked(self) -> None:
        """Called by all ranks when some rank has taken its first step, maybe without this one.

        A rank that joined before its own first step would wait for a check that is over.
        """
        if self._checked_at < 0 and self._joins != join_count():
            self._checked_at, self._step_count = 0, 1

    def _is_due(self) -> bool:
        if self._joins != join_count():
            # Ranks that joined made fewer steps than the others; from here on all count alike.
            self._joins = join_count()
            self._since = 0
        if self._checked_at < 0:
            return True
        return self._every > 0 and self._since > 0 and self._since % self._every == 0


def check_interval() -> int:
    """MYDIST_CHECK_CONSISTENCY: 0 by default; see docs/configuration.md. Raises ValueError."""
    return _C.check_consistency_steps(os.environ.get("MYDIST_CHECK_CONSISTENCY", ""))


@dataclass(frozen=True)
class _Comparison:
    """What is compared between whom; `call` begins the message and `hint` ends it."""

    call: str
    named: Sequence[tuple[str, torch.Tensor]]
    process_set: ProcessSet
    hint: str
    communication: str = ""
    maker: str = ""


def _compare(comparison: _Comparison) -> None:
    if comparison.process_set.size() == 1:
        return
    # Sorted, since ranks may add modules in a different order.
    named = sorted(comparison.named, key=lambda entry: entry[0])
    layout = {name: _describe(tensor) for name, tensor in named}
    hashes = _hashes([tensor for _, tensor in named])
    kind = _text_hash(comparison.communication + repr(layout))
    row = [topology.rank(), kind, int(value_hash(hashes))]
    # Ranks send their numbers: those that have joined are not in the table.
    rows = _gather(torch.tensor([row], dtype=torch.int64, device="cpu"), "digest", comparison)
    ranks = [int(rank) for rank in rows[:, 0]]
    if bool((rows[:, 1] != rows[0, 1]).any()):
        raise MismatchError(_layout_message(layout, comparison))
    if bool((rows[:, 2] != rows[0, 2]).any()):
        table = _gather(hashes.unsqueeze(0), "values", comparison)
        raise MismatchError(_value_message(list(layout), ranks, table, comparison))


def _gather(row: torch.Tensor, what: str, comparison: _Comparison) -> torch.Tensor:
    return allgather(row, name=f"check_consistency.{what}", process_set=comparison.process_set)


def _describe(tensor: torch.Tensor) -> tuple[str, str, str]:
    return str(list(tensor.shape)), str(tensor.dtype), str(tensor.requires_grad)


def _hashes(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The hash of each tensor, shape (len(tensors),), int64, on the CPU."""
    if not tensors:
        return torch.zeros(0, dtype=torch.int64, device="cpu")
    return torch.stack([value_hash(tensor).cpu() for tensor in tensors])


def _text_hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _layout_message(layout: dict[str, tuple[str, str, str]], comparison: _Comparison) -> str:
    """Names the first parameter that is missing, or of another kind, somewhere."""
    gathered = allgather_object(
        (topology.rank(), comparison.communication, layout),
        name="check_consistency.layout",
        process_set=comparison.process_set,
    )
    strategies = {rank: communication for rank, communication, _ in gathered}
    if len(set(strategies.values())) > 1:
        what = f"{comparison.call}: communication differs between ranks"
        return difference_text(what, strategies, [], _SAME_STRATEGY.format(comparison.maker))
    entries = [(rank, of_rank) for rank, _, of_rank in gathered]
    names = sorted({name for _, of_rank in entries for name in of_rank})
    differing = [name for name in names if len({of_rank.get(name) for _, of_rank in entries}) > 1]
    first = differing[0]
    found = {rank: of_rank.get(first) for rank, of_rank in entries}
    if None in found.values():
        what = f"parameter '{first}' is not on every rank"
        table = {rank: "missing" if row is None else "present" for rank, row in found.items()}
    else:
        index, word = next(
            (index, word)
            for index, word in enumerate(("shape", "dtype", "requires_grad"))
            if len({row[index] for row in found.values() if row}) > 1
        )
        what = f"parameter '{first}' has a different {word} on some ranks"
        table = {rank: row[index] for rank, row in found.items() if row}
    return difference_text(f"{comparison.call}: {what}", table, differing, _SAME_MODEL)


def _value_message(
    names: Sequence[str], ranks: Sequence[int], table: torch.Tensor, comparison: _Comparison
) -> str:
    """Names the first parameter whose values differ; `table` has a row of hashes per rank."""
    columns = (table != table[0]).any(0).nonzero().flatten().tolist()
    by_rank = {
        rank: f"hash {int(value) & (2**64 - 1):016x}"
        for rank, value in zip(ranks, table[:, columns[0]], strict=True)
    }
    differing = [names[column] for column in columns]
    what = f"{comparison.call}: the values of parameter '{differing[0]}' differ between ranks"
    return difference_text(what, by_rank, differing, comparison.hint)


def _named(parameters: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The pairs that the argument stands for. Raises TypeError or ValueError."""
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.named_parameters()
    entries = parameters.items() if isinstance(parameters, Mapping) else parameters
    expected = "expected a module, model.state_dict() or model.named_parameters()"
    if not isinstance(entries, Iterable) or isinstance(entries, (str, bytes, torch.Tensor)):
        raise TypeError(f"check_consistency: got {type(parameters).__name__}, {expected}")
    seen: set[str] = set()
    for entry in entries:
        if not is_named(entry):
            raise TypeError(
                f"check_consistency: got an entry {type(entry).__name__} that is not a pair of "
                f"name and tensor, {expected}"
            )
        if entry[0] in seen:
            raise ValueError(f"check_consistency: the name '{entry[0]}' is given twice")
        seen.add(entry[0])
        yield entry[0], _comparable(*entry)


def _comparable(name: str, tensor: Any) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"check_consistency: '{name}' is {type(tensor).__name__}, expected a tensor; compare "
            "other values with allgather_object"
        )
    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError(
            f"check_consistency: '{name}' has no shape yet; run the lazy module once first"
        )
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        kind = "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
        raise ValueError(
            f"check_consistency: '{name}' is {'quantized' if tensor.is_quantized else kind}, "
            "expected a dense tensor with values; leave it out"
        )
    return tensor
