"""Slices: this rank's pieces of the parameters, as the wrapped optimizer sees them.

A piece is a flat view of a part of one parameter, so what is written to it is in the parameter.
Nothing here reduces gradients. All calls come from the thread that trains.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ... import _C
from ...collectives import alltoall, barrier
from ...errors import MydistError
from ...job.process_set import ProcessSet
from .bucket_memory import BucketMemory
from .host_memory import HostMemory, move_parameters
from .layout import Bucket, Piece, owners, plan_buckets
from .offload import leaves_for_cpu

# Those that mydist.explain() tells about.
live_slices: weakref.WeakSet[Slices] = weakref.WeakSet()

# The state of a parameter that has a copy in another dtype: this rank's part of the copy.
MASTER = "master"


@dataclass(eq=False)
class OwnPiece:
    """What this rank owns of one parameter.

    Attributes:
        flat: the piece, as a view of the parameter; a parameter with one owner keeps its shape.
        master: a copy of it in another dtype or on the CPU, which the optimizer updates in its
            place.
    """

    parameter: torch.Tensor
    name: str
    bucket: HeldBucket
    place: Piece
    master_dtype: torch.dtype | None = None
    offloads: bool = False
    flat: torch.Tensor = field(init=False)
    master: torch.Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.flat = self.part_of(self.parameter.detach())
        own = self.parameter.dtype
        dtype = (self.master_dtype or own) if own.is_floating_point else own
        leaves = self.offloads and leaves_for_cpu(self.flat.device)
        if dtype != own or leaves:
            device = torch.device("cpu") if leaves else self.flat.device
            self.master = self.flat.to(device, dtype, copy=True)

    @property
    def trained(self) -> torch.Tensor:
        """What the optimizer updates."""
        return self.flat if self.master is None else self.master

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """This piece of a tensor that has the shape of the parameter, as a view where it can be."""
        start = self.place.start
        return whole.reshape(-1)[start : start + self.place.length].view(self.shape)

    @property
    def keeps_shape(self) -> bool:
        """Whether this rank owns the whole parameter because it may not be cut."""
        return self.bucket.plan.owner is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the piece, and of state with one number for each of its elements."""
        return tuple(self.parameter.shape) if self.keeps_shape else (self.place.length,)

    def follow(self) -> None:
        """Looks at the parameter again: programs may give it other memory, or other values."""
        at = self.parameter.data_ptr() + self.place.start * self.parameter.dtype.itemsize
        if self.flat.data_ptr() != at or self.flat.dtype != self.parameter.dtype:
            self.flat = self.part_of(self.parameter.detach())
        if self.master is not None:
            seen = self.flat.to(self.master.device)
            changed = self.master.to(seen.dtype) != seen
            if bool(changed.any()):
                self.master[changed] = seen[changed].to(self.master.dtype)

    def write_back(self) -> None:
        """The parameter gets what the optimizer has made of the copy."""
        if self.master is not None:
            is_here = self.master.device == self.flat.device
            # Cast first: fewer bytes go to a GPU.
            self.flat.copy_(self.master if is_here else self.master.to(self.flat.dtype))


@dataclass(eq=False)
class HeldBucket:
    """A bucket with its parameters, in the order of its members, and this rank's pieces of it.

    Attributes:
        shared: the bucket in the memory of this host, where its parameters are; None: each rank
            has its own.
    """

    plan: Bucket
    names: list[str]
    parameters: list[torch.Tensor]
    own: list[OwnPiece] = field(default_factory=list)
    shared: torch.Tensor | None = None

    @property
    def name(self) -> str:
        """Tells it apart from the other buckets of the optimizer."""
        return self.names[0]

    def expect_as_wrapped(self) -> None:
        """Raises ValueError for a parameter that cannot be cut as it was, or a sparse gradient."""
        place = 0 if self.shared is None else self.shared.data_ptr()
        for (parameter, start, count), name in zip(self.members(), self.names, strict=True):
            address = place + start * self.plan.dtype.itemsize
            if parameter.dtype != self.plan.dtype:
                change = f"is {parameter.dtype} now and was {self.plan.dtype}"
            elif parameter.numel() != count:
                change = f"has {parameter.numel()} elements now and had {count}"
            elif not parameter.is_contiguous():
                change = "is not contiguous now and was"
            elif self.shared is not None and parameter.data_ptr() != address:
                raise ValueError(
                    f"ShardedOptimizer: parameter '{name}' has been given other memory. With "
                    "share_parameters=True it lies in the memory of the host: change its values in "
                    "place, as parameter.data.copy_(…) does"
                )
            elif parameter.grad is not None and parameter.grad.is_sparse:
                raise sparse_gradient(name)
            else:
                continue
            raise ValueError(
                f"ShardedOptimizer: parameter '{name}' {change} when the optimizer was wrapped, "
                "and its slices do not follow. Change the model first, then wrap a new optimizer; "
                "mydist.gather_state() and mydist.scatter_state() take the state over"
            )

    def parts(self, rank: int) -> list[torch.Tensor]:
        """What a rank owns, as flat views of the parameters."""
        indices = [index for index, _ in self.plan.members]
        parameter_of = dict(zip(indices, self.parameters, strict=True))
        return [
            parameter_of[place.index].detach().view(-1)[place.start : place.start + place.length]
            for place in self.plan.pieces(rank)
        ]

    def members(self) -> Iterator[tuple[torch.Tensor, int, int]]:
        """Each parameter, where it begins in the bucket, and its number of elements."""
        at = 0
        for parameter, (_, count) in zip(self.parameters, self.plan.members, strict=True):
            yield parameter, at, count
            at += count

    def slice_of(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """What a rank owns of the whole bucket, as a view."""
        low, high = self.plan.bounds(rank)
        return whole[low:high]

    @property
    def is_trained(self) -> bool:
        """Whether any parameter takes part. Frozen ones are the same on all ranks."""
        return any(parameter.requires_grad for parameter in self.parameters)


_optimizers: Counter[tuple[str, int]] = Counter()  # By their first parameter, and the set.


def _label_of(first: str, process_set: int) -> str:
    """Tells optimizers apart whose parameters have the same names: those of two models, say.

    All ranks make them in one order.
    """
    _optimizers[first, process_set] += 1
    number = _optimizers[first, process_set]
    return f"{number}." if number > 1 else ""


class Slices:
    """The buckets of an optimizer, and which part of each this rank owns."""

    def __init__(
        self,
        process_set: ProcessSet,
        master_dtype: torch.dtype | None = None,
        by_parameter: bool = False,
        shares_parameters: bool = False,
        offloads: bool = False,
    ) -> None:
        """by_parameter: parameters are not cut; each has one owner.

        shares_parameters: ranks of one host share one copy of them.
        offloads: state and updates of parameters on a GPU are on the CPU.
        """
        self.process_set = process_set
        self.master_dtype = master_dtype
        self.by_parameter = by_parameter
        self.offloads = offloads
        self.size, self.rank = process_set.size(), process_set.rank()
        self.host = HostMemory(process_set) if shares_parameters and self.size > 1 else None
        self.buckets: list[HeldBucket] = []
        self.memory = BucketMemory()
        self.label = ""  # In the names of collectives; see `_label_of`.
        live_slices.add(self)
        self._known: set[int] = set()  # id() of the parameters that have been laid out.
        self._pieces: dict[int, OwnPiece] = {}  # By id() of the parameter.
        self._places: dict[int, tuple[HeldBucket, int]] = {}  # And its number in the bucket's plan.

    def lay_out(self, named: Iterable[tuple[torch.Tensor, str]]) -> list[torch.Tensor]:
        """Gives a bucket to each trained parameter that has none; returns those, in order.

        Frozen parameters get one when they are thawed: until then they cost nothing.
        """
        new = [(p, name) for p, name in named if p.requires_grad and id(p) not in self._known]
        if new and not self.buckets:
            self.label = _label_of(new[0][1], self.process_set.process_set_id)
        sizes = [(index, p.dtype, p.numel()) for index, (p, _) in enumerate(new)]
        present = [bucket.plan for bucket in self.buckets]
        owner_of = owners(sizes, self.size, present) if self.by_parameter else None
        first = len(self.buckets)
        for plan in plan_buckets(sizes, self.size, owner_of=owner_of):
            members = [new[index] for index, _ in plan.members]
            names = [name for _, name in members]
            bucket = HeldBucket(plan, names, [parameter for parameter, _ in members])
            for index, _ in plan.members:
                self._places[id(new[index][0])] = bucket, index
            for place in plan.pieces(self.rank):
                copies = (self.master_dtype, self.offloads)
                piece = OwnPiece(*new[place.index], bucket, place, *copies)
                bucket.own.append(piece)
                self._pieces[id(piece.parameter)] = piece
            self.buckets.append(bucket)
            self.memory.foresee(plan)
        if self.host is not None:
            move_parameters(self.buckets[first:], self.host)
        parameters = [parameter for parameter, _ in new]
        self._known.update(map(id, parameters))
        return parameters

    @property
    def shared_bytes(self) -> int:
        """Of the parameters that this rank shares with others."""
        shared = [bucket.plan for bucket in self.buckets if bucket.shared is not None]
        return sum(plan.length * plan.dtype.itemsize for plan in shared)

    def expect_as_wrapped(self) -> None:
        """Raises ValueError if a parameter cannot be cut as it was, or its gradient cannot."""
        for bucket in self.buckets:
            bucket.expect_as_wrapped()

    def describe(self) -> tuple[str, str]:
        """What this rank owns, and how it was cut; for mydist.explain()."""
        plans = [bucket.plan for bucket in self.buckets]
        whole = sum(plan.length for plan in plans)
        own = sum(piece.flat.numel() for piece in self.pieces())
        longest = max((p.padded_length * p.dtype.itemsize for p in plans), default=0)
        count = "1 bucket" if len(plans) == 1 else f"{len(plans)} buckets"
        share = f"slice {self.rank} of {self.size}"
        if self.by_parameter:
            held = sum(plan.owner == self.rank for plan in plans)
            share = f"rank {self.rank} owns {held}"
        if self.host is not None and self.shared_bytes:
            share = f"one copy of the parameters for {len(self.host.ranks)} ranks; {share}"
        return (
            f"{own} of {whole} parameters are updated here",
            f"{share} of {count} of up to {longest / (1 << 20):.4g} MiB",
        )

    def state_device(self, parameter: torch.Tensor) -> torch.device:
        """Where the state of a parameter with a bucket is, on each rank."""
        leaves = self.offloads and leaves_for_cpu(parameter.device)
        return torch.device("cpu") if leaves else parameter.device

    def piece_of(self, parameter: torch.Tensor) -> OwnPiece | None:
        """None: this rank owns nothing of it."""
        return self._pieces.get(id(parameter))

    def has_bucket(self, parameter: torch.Tensor) -> bool:
        """Not if it is empty, or has always been frozen."""
        return id(parameter) in self._places

    def lengths_of(self, parameter: torch.Tensor) -> list[int]:
        """How many elements of a parameter that has a bucket each rank owns."""
        bucket, index = self._places[id(parameter)]
        return [
            sum(piece.length for piece in bucket.plan.pieces(rank) if piece.index == index)
            for rank in range(self.size)
        ]

    def pieces(self) -> Iterator[OwnPiece]:
        """All of this rank."""
        return iter(self._pieces.values())

    def turns(self) -> list[list[OwnPiece]]:
        """Pieces that are updated together: all, or a bucket at a time, as gradients are copied."""
        if self.master_dtype is None and not self.offloads:
            return [list(self.pieces())]
        return [bucket.own for bucket in self.buckets if bucket.own]

    @contextmanager
    def in_place_of_parameters(
        self, optimizer: torch.optim.Optimizer, pieces: list[OwnPiece]
    ) -> Iterator[None]:
        """Within this context the optimizer has these pieces as parameters, and their state."""
        chosen = {id(piece.parameter): piece.trained for piece in pieces}
        groups, state = optimizer.param_groups, optimizer.state
        whole = [group["params"] for group in groups]
        of_pieces: defaultdict[Any, Any] = defaultdict(dict)
        of_pieces.update({key: v for key, v in state.items() if not isinstance(key, torch.Tensor)})
        for piece in pieces:
            of_piece = state.pop(piece.parameter, {})
            of_piece.pop(MASTER, None)
            if of_piece:
                of_pieces[piece.trained] = of_piece
        try:
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = [chosen[id(p)] for p in parameters if id(p) in chosen]
            optimizer.state = of_pieces
            yield
        finally:
            optimizer.state = state
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = parameters
            for piece in pieces:
                of_piece = of_pieces.pop(piece.trained, {})
                if piece.master is not None:
                    of_piece[MASTER] = piece.master
                if of_piece:
                    state[piece.parameter] = of_piece
            state.update(of_pieces)

    def begin_update(self) -> None:
        """Called before parameters change. Collective; blocks."""
        if self.host is not None:
            # A rank may have synchronized its gradients, and read parameters yet.
            barrier(self.process_set)

    def share_parameters(self) -> None:
        """Every rank gets the pieces of all others. Collective; blocks."""

        def write(bucket: HeldBucket, own: torch.Tensor) -> None:
            for piece in bucket.own:
                start = piece.place.offset
                own[start : start + piece.place.length].copy_(piece.flat.view(-1))

        def take(bucket: HeldBucket, whole: torch.Tensor) -> None:
            if self.host is not None and bucket.shared is not None:
                # Each rank of the host writes the slices of some ranks of other hosts.
                for index in self.host.others[self.host.place :: len(self.host.ranks)]:
                    bucket.slice_of(bucket.shared, index).copy_(bucket.slice_of(whole, index))
                return
            low, high = bucket.plan.bounds(self.rank)
            for parameter, start, count in bucket.members():
                flat = parameter.detach().view(-1)
                # What this rank owns is there already.
                before = min(max(low - start, 0), count)
                after = min(max(high - start, 0), count)
                for begin, end in ((0, before), (after, count)):
                    flat[begin:end].copy_(whole[start + begin : start + end])

        if self.host is None:
            if self.size > 1:
                self.gather("parameters", write, take)
            return
        if self.host.others:
            self.gather("parameters", write, take)
        else:
            self.gather("parameters", write, take, lambda bucket: bucket.shared is None)
        barrier(self.process_set)

    @torch.no_grad()
    def undo(self) -> bool:
        """This rank's pieces become what the next rank still has of them. Collective.

        The step has failed on some rank, and no rank has taken over the pieces of others.
        Parameters that a host has once cannot go back; they are made equal on all hosts. Returns
        whether this rank's parameters are those of the step before.
        """
        if self.host is not None:
            self.share_parameters()
            return all(piece.master is not None for piece in self.pieces())
        for bucket in self.buckets:
            if not bucket.is_trained:
                continue
            before = (self.rank - 1) % self.size
            kept = bucket.parts(before)
            sent = torch.cat(kept) if kept else bucket.parameters[0].new_empty(0)
            counts = [0] * self.size
            counts[before] = sent.numel()
            name = f"sharded.restored.{self.label}{bucket.name}"
            received, _ = alltoall(sent, counts, name=name, process_set=self.process_set)
            own = bucket.parts(self.rank)
            for part, old in zip(own, received.split([p.numel() for p in own]), strict=True):
                part.copy_(old)
        return True

    @torch.no_grad()
    def gather(
        self,
        what: str,
        write: Callable[[HeldBucket, torch.Tensor], None],
        take: Callable[[HeldBucket, torch.Tensor], None],
        chosen: Callable[[HeldBucket], bool] = lambda _: True,
    ) -> None:
        """`take` gets each trained bucket whole, of the slices that each rank's `write` has filled.

        chosen: whether the bucket travels; equal on all ranks.

        Raises MydistError when a rank has left the training by join().
        """
        for bucket in self.buckets:
            if not (bucket.is_trained and chosen(bucket)):
                continue
            memory = self.memory.take(bucket.plan, bucket.parameters[0].device)
            own = bucket.slice_of(memory, self.rank)
            write(bucket, own)
            # Into the same memory, so that only the slices of others are copied.
            name = f"sharded.{what}.{self.label}{bucket.name}"
            set_id = self.process_set.process_set_id
            (whole,) = _C.allgather([own], [name], "", set_id, [memory])
            expect_all_slices(bucket, whole)
            take(bucket, whole)
            self.memory.give_back(memory)


def sparse_gradient(name: str) -> ValueError:
    """The error."""
    return ValueError(
        f"the gradient of '{name}' is sparse, which a sharded optimizer cannot cut; create the "
        "layer with sparse=False"
    )


def expect_all_slices(bucket: HeldBucket, whole: torch.Tensor) -> None:
    """Raises MydistError when a slice is missing."""
    ranks = bucket.plan.ranks
    expected = bucket.plan.padded_length
    if whole.numel() != expected:
        missing = (expected - whole.numel()) // max(map(bucket.plan.slice_length, range(ranks)))
        raise MydistError(
            f"{missing} of {ranks} ranks called join(), and their slices of "
            f"the parameters get no more updates (bucket of '{bucket.name}'). A sharded optimizer "
            "needs the same number of steps on every rank: use a sampler with drop_last=True"
        )


def cut_state(
    values: Mapping[str, Any], parameter: torch.Tensor, piece: OwnPiece
) -> dict[str, Any]:
    """The state of a whole parameter, as its piece has it. Raises ValueError for other shapes."""
    cut = {}
    for key, value in values.items():
        if not is_per_element(key, value, parameter):
            is_other = isinstance(value, torch.Tensor) and value.numel() > 1
            if is_other and not piece.keeps_shape:
                raise ValueError(
                    f"the state '{key}' of parameter '{piece.name}' has the shape "
                    f"{list(value.shape)}, expected {list(parameter.shape)} or one number: "
                    "the optimizer does not treat each element alone, so it cannot be sharded"
                )
            cut[key] = value
            continue
        # A copy: a view would keep the whole alive.
        part = piece.part_of(value.detach()).clone()
        cut[key] = part if piece.master is None else part.to(piece.master)
    return cut


def is_per_element(key: str, value: Any, parameter: torch.Tensor) -> bool:
    """Whether this state has a number for each element. A count of steps has none."""
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape and key != "step"
