"""The compiled extension: torch tensors in, engine calls out. Private; use the names in mydist."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

# Exceptions; made here so that C++ can raise them, published by mydist.errors.
class MydistError(RuntimeError):
    failure: dict[str, Any]

class MismatchError(MydistError): ...
class PeerLostError(MydistError): ...
class CollectiveTimeoutError(MydistError): ...
class AbortedError(MydistError): ...
class VersionMismatchError(MydistError): ...

# Called with each MydistError that C++ raises, before it is raised; by any thread.
def set_on_error(told: Callable[[MydistError], None]) -> None: ...

class Topology:
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool
    hosts: list[str]

def init(
    rank: int,
    size: int,
    backend: str,
    exchange: Callable[[bytes], Sequence[bytes]] | None,
    members: Sequence[int] = (),  # MPI: the launched ranks that form the job; empty: all.
    nccl_folders: Sequence[str] = (),  # Where an installed NCCL may lie.
    rank_ends: int = -1,  # The descriptor by which mydistrun tells how ranks have ended.
) -> None: ...
def shutdown(awaits_living: bool = True) -> None: ...
def is_initialized() -> bool: ...
def topology() -> Topology: ...
def backend_name() -> str: ...
def backend_report(name: str, nccl_folders: Sequence[str] = ()) -> dict[str, str | bool]: ...
def transports() -> list[tuple[str, bool]]: ...  # Name, and whether it numbers the ranks.
def cuda_built() -> bool: ...
def nccl_version(nccl_folders: Sequence[str]) -> int: ...  # 0: none was found.
def version() -> str: ...
def start_timeline(path: str, mark_cycles: bool) -> None: ...
def stop_timeline() -> None: ...
def stats() -> dict[str, int]: ...
def begin_round(lane: str, text: str) -> None: ...  # Of a strategy; shown in the timeline.
def end_round(lane: str) -> None: ...  # Counted as strategy_rounds.
def check_consistency_steps(text: str) -> int: ...  # The value of the setting in this text.

# The operation and a name of what has been in flight for longest.
def oldest_in_flight() -> tuple[str, str] | None: ...

# What this rank has completed last: operation, tensor, number, ago; empty without a job.
def group_stats() -> dict[str, dict[str, int]]: ...
def last_group_failure() -> dict[str, Any]: ...
def own_progress() -> dict[str, Any]: ...
def fear_for_peers() -> None: ...

# Warns if the memory that the ranks of a host share has no room for so many bytes of tensors.
def foresee_shared(bytes: int) -> None: ...

# Every enqueue_* returns a handle; wait() gives the outputs and forgets it. A function of the same
# name without enqueue_ takes the same, does both at once and wakes no other thread; here are those
# that are called by name. `group` is "" or the name that makes the tensors complete together.
# `reduce_op` is the number of mydist.ReduceOp. Inputs that are not contiguous are copied; outputs
# that are not contiguous (in place on a view) are written back by wait().
def enqueue_allreduce(
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor] | None,  # None: new tensors are made.
    names: Sequence[str],
    group: str,
    reduce_op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: int,
    compression: int = 0,  # As what float32 travels: 1 float16, 2 bfloat16.
) -> int: ...
def enqueue_allgather(
    inputs: Sequence[torch.Tensor],
    names: Sequence[str],
    group: str,
    process_set: int,
    outputs: Sequence[torch.Tensor] = (),  # Used where they have as many elements as the results.
) -> int: ...
def enqueue_broadcast(
    input: torch.Tensor,
    output: torch.Tensor | None,  # None: a new tensor is made.
    root_rank: int,
    name: str,
    process_set: int,
) -> int: ...
def enqueue_alltoall(
    input: torch.Tensor, splits: Sequence[int] | None, name: str, process_set: int
) -> int: ...
def enqueue_reducescatter(
    inputs: Sequence[torch.Tensor],
    names: Sequence[str],
    group: str,
    reduce_op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: int,
    outputs: Sequence[torch.Tensor] = (),
) -> int: ...
def enqueue_reduce(
    input: torch.Tensor,
    output: torch.Tensor | None,  # Used on the root only; None: a new tensor is made there.
    root_rank: int,
    name: str,
    reduce_op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: int,
) -> int: ...
def enqueue_gather(input: torch.Tensor, root_rank: int, name: str, process_set: int) -> int: ...
def enqueue_scatter(
    tensor: torch.Tensor,  # Elsewhere than on the root only its dtype and row shape matter.
    splits: Sequence[int] | None,
    root_rank: int,
    name: str,
    process_set: int,
) -> int: ...
def enqueue_send_receive(
    tensor: torch.Tensor, source: int, destination: int, name: str, process_set: int
) -> int: ...
def enqueue_join() -> int: ...
def allreduce(*arguments: Any) -> list[torch.Tensor]: ...
def allgather(
    inputs: Sequence[torch.Tensor],
    names: Sequence[str],
    group: str,
    process_set: int,
    outputs: Sequence[torch.Tensor] = (),
) -> list[torch.Tensor]: ...
def send_receive(
    tensor: torch.Tensor, source: int, destination: int, name: str, process_set: int
) -> list[torch.Tensor]: ...
def add_process_set(ranks: Sequence[int], name: str) -> list[torch.Tensor]: ...
def remove_process_set(process_set: int, name: str) -> list[torch.Tensor]: ...
def barrier(name: str, process_set: int) -> list[torch.Tensor]: ...
def tell_refusal(name: str, group: str, process_set: int, ends: Sequence[int]) -> None: ...
def poll(handle: int) -> bool: ...
def wait(handle: int) -> list[torch.Tensor]:
    """Outputs in the order of the inputs; nothing where the rank has none (reduce, gather, send).

    With numbers as a last tensor (int64): the received splits of alltoall, the number of an added
    process set, the rank that joined last.
    """

# Integers as numbers that do not wrap while they are added up, int64 with one more dimension; and
# from such a sum the average, truncated toward zero. `sum` is used up.
def carry_integers(tensor: torch.Tensor) -> torch.Tensor: ...
def average_integers(sum: torch.Tensor, dtype: torch.dtype, divisor: int) -> torch.Tensor: ...

# Bytes on the CPU that collectives of this host read where they lie, if there is such a place.
def empty_in_reach(bytes: int) -> torch.Tensor: ...

# AdamW in place on contiguous float32 tensors of the CPU, all of one length. `step` counts from 1.
def adamw_(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> None: ...

# A codec of the core, by the name and options of its row. Cuts are int64 of shape (n, 3): tensor,
# first value, number of values. A state has `state_floats` for each value of its tensor.
class GradientCodec:
    def __init__(self, name: str, options: dict[str, float]) -> None: ...
    @property
    def block(self) -> int: ...
    @property
    def is_fixed(self) -> bool: ...
    @property
    def state_floats(self) -> int: ...
    def max_bytes(self, count: int) -> int: ...  # Of a payload with its header.
    # A payload for each cut, one behind the other in `out`; their bytes, and if all is finite.
    def encode(
        self,
        values: list[torch.Tensor],
        cuts: torch.Tensor,
        states: list[torch.Tensor],
        factors: list[float],
        keys: list[int],
        out: torch.Tensor,
    ) -> tuple[list[int], bool]: ...
    # Whether all that was encoded is finite. Raises MydistError for a corrupt payload.
    def is_finite(self, payloads: torch.Tensor, counts: torch.Tensor) -> bool: ...
    def decode_add(
        self, payloads: torch.Tensor, cuts: torch.Tensor, scale: float, out: list[torch.Tensor]
    ) -> None: ...
    # Updates the states: these payloads, made with the same arguments, count.
    def keep(
        self,
        values: list[torch.Tensor],
        cuts: torch.Tensor,
        states: list[torch.Tensor],
        factors: list[float],
        payloads: torch.Tensor,
    ) -> None: ...

# Matrices of `rows` rows as products P·Qᵀ; csrc/kernels/compress/low_rank.h. All are flat float32
# tensors on the CPU. M = values + residual × factor.
def low_rank_times(
    values: torch.Tensor,
    residual: torch.Tensor,
    factor: float,
    rows: int,
    q: torch.Tensor,
    p: torch.Tensor,
) -> None: ...  # p = M·Q
def low_rank_transposed_times(
    values: torch.Tensor,
    residual: torch.Tensor,
    factor: float,
    rows: int,
    p: torch.Tensor,
    q: torch.Tensor,
) -> None: ...  # q = Mᵀ·P
def low_rank_product(
    p: torch.Tensor, q: torch.Tensor, rows: int, scale: float, out: torch.Tensor
) -> None: ...  # out = P·Qᵀ × scale
def low_rank_keep(
    values: torch.Tensor,
    residual: torch.Tensor,
    factor: float,
    rows: int,
    p: torch.Tensor,
    q: torch.Tensor,
) -> None: ...  # residual = M − P·Qᵀ
def orthogonalize(columns: torch.Tensor, length: int) -> None: ...
def install_quit_handler() -> bool: ...  # Whether this call has done so.
def note_quit_handler_on_top() -> None: ...
def explain() -> list[tuple[str, str, str]]: ...  # Topic, choice, reason.

class GradientHook:
    """What GradientReducer registers on a parameter."""

    def __call__(self, parameter: torch.Tensor) -> None: ...

class GradientReducer:
    """Enqueues gradients as they become ready; see csrc/torch/gradients/gradient_reducer.h.

    compression: 0 none, 1 float16, 2 bfloat16 on the wire.
    """

    def __init__(
        self,
        reduce_op: int,
        prescale_factor: float,
        postscale_factor: float,
        compression: int,
        backward_passes_per_step: int,
        process_set: int,
    ) -> None: ...
    # Registers the C++ hook on the parameter; `group` as above (with group_size members) or "".
    def add_parameter(
        self, parameter: torch.Tensor, name: str, group: str, group_size: int
    ) -> None: ...
    # Enqueues every registered parameter that has not been enqueued in this step (zeros when it has
    # no gradient on this rank, so that ranks may use different parameters), waits for all and
    # writes the results to .grad. Raises the first error.
    def synchronize(self) -> None: ...
    def set_backward_passes_per_step(self, passes: int) -> None: ...
    # True: a sparse gradient is replaced by its dense form. False (the default): its rows are
    # gathered.
    def set_sparse_as_dense(self, sparse_as_dense: bool) -> None: ...
    def set_enabled(self, enabled: bool) -> None: ...  # False inside no_sync().
    # True (the default): gradients lie side by side while they are reduced, and .grad stays there.
    def set_buffer_views(self, buffer_views: bool) -> None: ...
    def buckets(self) -> list[list[str]]: ...  # Names; none before the first synchronize.
    # How many buckets were made at once, the most bytes of the first one and of the others, and
    # where these sizes come from. More than one for parameters that were added later.
    def layouts(self) -> list[tuple[int, int, int, str]]: ...
    def slot_bytes(self) -> int: ...  # Of the memory reserved for gradients.
    def copied_bytes(self) -> int: ...  # Of gradients copied to that memory or back, so far.
    def pending(self) -> list[str]: ...  # Names enqueued and not yet synchronized.
    def touched(self) -> bool: ...  # Whether a backward ran since the last synchronize.
    def reset(self) -> None: ...  # Forget backward counts of this step.
    # The first step was refused before its synchronize: its gradients are no longer in flight.
    def let_go(self) -> None: ...
    def remove(self) -> None: ...  # Unregister all hooks.
