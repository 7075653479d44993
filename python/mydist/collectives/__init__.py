"""Every collective operation, and the handles of the asynchronous ones."""

from __future__ import annotations

from .allgather_calls import allgather, allgather_async, grouped_allgather, grouped_allgather_async
from .allreduce_calls import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from .alltoall_calls import alltoall, alltoall_async
from .barrier_call import barrier
from .broadcast_calls import broadcast, broadcast_, broadcast_async, broadcast_async_
from .handles import poll, synchronize
from .join_call import join
from .point_to_point import recv, recv_async, send, send_async
from .reducescatter_calls import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from .rooted import gather, gather_async, reduce, reduce_async, scatter, scatter_async

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "gather",
    "gather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "synchronize",
]
