"""NetworkJob: a strategy's job on real ranks; it averages with mydist's collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch

from ... import _C
from ...codecs.auto import Auto
from ...codecs.codec import Codec
from ...collectives import allgather, allreduce, grouped_allreduce_async_
from ...collectives.compression import Compression, CompressorLike
from ...collectives.handles import synchronize_all
from ...collectives.objects import broadcast_object
from ...job.process_set import ProcessSet
from ...ps.consistency import Consistency
from ...ps.rules import Rule
from ...ps.table import Table
from ...reduce_op import Sum
from ..encoding.automatic import decide
from ..encoding.encoded_sum import EncodedSum
from ..state import broadcast_all, broadcast_state_of
from .job import Await, StrategyJob
from .part import Tensors


class NetworkJob(StrategyJob):
    """The ranks of a process set. Names of collectives begin with the name of the first parameter,
    and a number from the second job of that name on, so that several optimizers do not meet."""

    _jobs: ClassVar[Counter[tuple[str, int]]] = Counter()  # By that name and the set.

    def __init__(
        self,
        buffers: Sequence[torch.Tensor],
        process_set: ProcessSet,
        compression: CompressorLike | Codec,
        name: str,
    ) -> None:
        super().__init__(buffers)
        self.rank, self.size = process_set.rank(), process_set.size()
        self._process_set = process_set
        self._auto = compression if isinstance(compression, Auto) else None
        self._settle(Compression.none if isinstance(compression, Auto) else compression)
        self._first = name
        self._tables = 0

    def _settle(self, compression: CompressorLike | Codec) -> None:
        self.keeper = self._codec = (
            EncodedSum(compression, self._process_set) if isinstance(compression, Codec) else None
        )
        self._compressor = Compression.none if isinstance(compression, Codec) else compression

    @classmethod
    def restart_names(cls) -> None:
        """Numbers names from 1 again. The jobs that have one must not be used any more."""
        cls._jobs.clear()

    @cached_property
    def _name(self) -> str:
        # Numbered at the first collective: all ranks come to those in the same order.
        key = self._first, self._process_set.process_set_id
        self._jobs[key] += 1
        number = self._jobs[key]
        return f"strategy.{self._first}" + (f".{number}" if number > 1 else "")

    def table(self, label: str, like: torch.Tensor, rule: Rule, consistency: Consistency) -> Table:
        """See StrategyJob."""
        self._tables += 1
        number = f".{self._tables}" if self._tables > 1 else ""
        name = f"{self._name}.{label}{number}"
        table = Table(name, like, rule, consistency, process_set=self._process_set)
        table.close_with_owner()
        return table

    def rank_text(self, index: int) -> str:
        """By its number in the job."""
        return super().rank_text(self._process_set.ranks[index])

    def step_taken(self) -> None:
        """See StrategyJob; time passes by itself."""

    def _start_sum(self, tensors: Tensors, exact: Tensors, label: str) -> Await:
        if self._auto is not None:
            self._settle(decide(self._auto, self._process_set))
            self._auto = None
        _C.begin_round(self._name, f"round {self.rounds + 1}: {label}")
        handles = []
        encoded, plain = self._divided(tensors)
        if plain:
            handles.append(
                grouped_allreduce_async_(
                    plain,
                    name=f"{self._name}.{label}",
                    op=Sum,
                    process_set=self._process_set,
                    compression=self._compressor,
                )
            )
        for device in sorted({str(tensor.device) for tensor in exact}):
            members = [tensor for tensor in exact if str(tensor.device) == device]
            name = f"{self._name}.{label}.{device.partition(':')[0]}"
            handles.append(
                grouped_allreduce_async_(members, name=name, op=Sum, process_set=self._process_set)
            )

        await_encoded = None
        if self._codec is not None and encoded:
            name = f"{self._name}.{label}"
            await_encoded = self._codec.start(encoded, name, f"{self._first}.{label}")

        def wait() -> None:
            synchronize_all(handles)
            if await_encoded is not None:
                await_encoded()
            _C.end_round(self._name)

        return wait

    def _divided(self, tensors: Tensors) -> tuple[Tensors, Tensors]:
        """Those that a codec encodes, and the others."""
        codec = self._codec
        if codec is None:
            return [], tensors
        encoded = [tensor for tensor in tensors if codec.takes(tensor)]
        return encoded, [tensor for tensor in tensors if not codec.takes(tensor)]

    def _total(self, number: float, label: str) -> float:
        own = torch.tensor([number], dtype=torch.float64, device="cpu")
        name = f"{self._name}.{label}"
        return float(allreduce(own, op=Sum, name=name, process_set=self._process_set))

    def gather(self, row: Sequence[int]) -> list[list[int]]:
        """See StrategyJob."""
        own = torch.tensor([list(row)], dtype=torch.int64, device="cpu")
        rows = allgather(own, name=f"{self._name}.progress", process_set=self._process_set)
        return [[int(value) for value in of_rank] for of_rank in rows]

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int) -> None:
        """See StrategyJob."""
        sender = self._process_set.ranks[root]
        named = {f"{self._name}.catch_up.{index}": tensor for index, tensor in enumerate(tensors)}
        broadcast_all(named, sender, self._process_set)

    def broadcast_object(self, value: Any, root: int) -> Any:
        """See StrategyJob."""
        sender = self._process_set.ranks[root]
        return broadcast_object(value, sender, f"{self._name}.own", self._process_set)

    def copy_training(self, root: int) -> None:
        """See StrategyJob."""
        parameters = self.parameters
        self.broadcast(parameters, root)
        sender = self._process_set.ranks[root]
        broadcast_state_of(parameters, self.optimizer, sender, self._process_set)
