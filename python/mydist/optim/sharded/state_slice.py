"""StateSlice: what a rank has of the state of one parameter, for torch.distributed.checkpoint.

The planners of torch look at three methods: which part is saved, which part is wanted, and where it
is. So each rank saves its own part, and one that has been cut otherwise reads what overlaps it.
"""

from __future__ import annotations

from typing import Any

import torch


class StateSlice(torch.Tensor):
    """A part of a flat tensor. It has the shape of the whole, and the memory of the part.

    It is for saving and loading: copies and pickles work, arithmetic does not. A pickle has the
    part as an ordinary tensor, so that `torch.load` needs nothing of mydist.

    Attributes:
        local: the part; flat.
        start: where it lies in the whole.
    """

    local: torch.Tensor
    start: int

    @staticmethod
    def __new__(cls, local: torch.Tensor, start: int, count: int) -> StateSlice:
        """count: the number of elements of the whole."""
        whole: StateSlice = torch.Tensor._make_wrapper_subclass(
            cls, (count,), dtype=local.dtype, device=local.device
        )
        whole.local = local
        whole.start = start
        return whole

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        own = args[0] if args else None
        name = func.overloadpacket.__name__
        if isinstance(own, StateSlice) and name in ("detach", "clone", "new_empty"):
            # torch asks for memory of the whole when it copies a state before it saves it.
            rest = args[1:] if name != "new_empty" else ([own.local.numel()], *args[2:])
            part = func(own.local, *rest, **(kwargs or {}))
            return StateSlice(part, own.start, own.numel())
        # torch makes a TypeError of an operator another error.
        raise RuntimeError(
            f"{name}() cannot compute with this rank's slice in state_dict(); its numbers are in "
            "its attribute 'local', and in optimizer.state"
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        end = self.start + self.local.numel()
        return f"StateSlice({self.local!r}, elements {self.start} to {end} of {self.numel()})"

    def __deepcopy__(self, memo: dict[int, Any]) -> StateSlice:
        copied = memo[id(self)] = StateSlice(self.local.clone(), self.start, self.numel())
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.local.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __create_write_items__(self, fqn: str, _: Any) -> list[Any]:
        from torch.distributed.checkpoint import planner
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties

        (chunk,) = self.__create_chunk_list__()
        data = planner.TensorWriteData(
            chunk, TensorProperties.create_from_tensor(self.local), self.size()
        )
        index = MetadataIndex(fqn, chunk.offsets)
        return [planner.WriteItem(index, planner.WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size([self.start]), self.local.shape)]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        return self.local
