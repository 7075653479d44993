"""Wrong arguments: the error's type and text, raised before anything is enqueued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import mydist as md

T = torch.ones(4)
M = torch.ones(4, 3)

pytestmark = pytest.mark.usefixtures("job")

Case = tuple[Callable[[], object], type[Exception], str]


def expanded() -> torch.Tensor:
    return torch.ones(1, 3).expand(4, 3)


def resized_to_nothing() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)


def leaf() -> torch.Tensor:
    return torch.ones(4, requires_grad=True)


def overlapping_view() -> torch.Tensor:
    return torch.ones(10).as_strided((3, 4), (2, 1))


def untyped(value: object) -> Any:
    """A wrong argument that the type checker must not see."""
    return value


class NotADecompressor:
    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tensor, None


class CompressesToAList(NotADecompressor):
    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        return tensor

    @staticmethod
    def compress(tensor: torch.Tensor) -> Any:
        return tensor.tolist(), None


# What is no tensor at all.
NOT_TENSORS: dict[str, Case] = {
    "list": (lambda: md.allreduce(untyped([1.0])), TypeError, r"allreduce: got list, expected a"),
    "str": (lambda: md.broadcast(untyped("x"), 0), TypeError, r"broadcast: got str, expected a"),
    "async": (lambda: md.allgather_async(untyped(())), TypeError, r"allgather_async: got tuple"),
    "group of one tensor": (
        lambda: md.grouped_allreduce(untyped(M)),
        TypeError,
        r"grouped_allreduce: got Tensor, expected a list or tuple of tensors",
    ),
    "group member": (
        lambda: md.grouped_reducescatter(untyped([T, 2.0])),
        TypeError,
        r"grouped_reducescatter: element 1 is float, expected a torch\.Tensor",
    ),
    "empty group": (
        lambda: md.grouped_allreduce([]),
        ValueError,
        r"grouped_allreduce: got an empty list, expected at least one tensor",
    ),
}

# Tensors that cannot travel.
KINDS: dict[str, Case] = {
    "sparse": (
        lambda: md.allreduce(T.to_sparse(), name="s"),
        ValueError,
        r"allreduce of 's': its layout is Sparse, expected a dense tensor.*to_dense\(\)",
    ),
    "nested": (
        lambda: md.allreduce(nested(), name="n"),
        ValueError,
        r"allreduce of 'n': it is a nested tensor, expected a dense one",
    ),
    "meta": (
        lambda: md.broadcast(torch.ones(3, device="meta"), 0, name="m"),
        ValueError,
        r"broadcast of 'm': it is on the meta device and has no data.*to_empty",
    ),
    "quantized": (
        lambda: md.allreduce(quantized(), name="q"),
        TypeError,
        r"allreduce of 'q': dtype quint8 is quantized.*dequantize\(\)",
    ),
    "no storage": (
        lambda: md.allreduce(resized_to_nothing(), name="r"),
        ValueError,
        r"allreduce of 'r': its storage was resized to 0.*expected 4 elements",
    ),
    "vmap": (
        lambda: torch.vmap(lambda row: md.allreduce(row, name="v"))(M),
        TypeError,
        r"allreduce of 'v': it is a tensor subclass or transform that intercepts",
    ),
    "0-d alltoall": (
        lambda: md.alltoall(torch.tensor(1.0), name="z"),
        ValueError,
        r"alltoall of 'z': got a 0-d tensor, expected at least one dimension.*reshape\(1\)",
    ),
}

if not hasattr(torch, "quantize_per_tensor"):  # Later versions of torch drop quantized dtypes.
    del KINDS["quantized"]

UNSUPPORTED = ["uint16", "uint32", "uint64", "float8_e5m2fnuz", "complex32"]


@pytest.mark.parametrize("dtype", UNSUPPORTED)
@pytest.mark.parametrize("call", [md.allreduce, md.allgather, md.alltoall, md.reducescatter])
def test_unsupported_dtypes_are_named(call: Callable[..., object], dtype: str) -> None:
    tensor = torch.empty(4, dtype=getattr(torch, dtype))
    text = (
        rf"{call.__name__} of 'odd': dtype {dtype} is not supported\. Supported: uint8, .*Convert"
    )
    with pytest.raises(TypeError, match=text):
        call(tensor, name="odd")


# What cannot be written in place.
IN_PLACE: dict[str, Case] = {
    "expanded": (
        lambda: md.allreduce_(expanded(), name="e"),
        ValueError,
        r"allreduce of 'e': several of its elements share memory.*clone\(\)",
    ),
    "overlapping view": (
        lambda: md.allreduce_(overlapping_view(), name="o"),
        ValueError,
        r"allreduce of 'o': several of its elements share memory",
    ),
    "twice in a group": (
        lambda: md.grouped_allreduce_([T, M, T], name="g"),
        ValueError,
        r"allreduce of 'g\.[02]': it shares its memory with 'g\.[02]' of the same group",
    ),
    "leaf": (
        lambda: md.allreduce_(leaf()),
        ValueError,
        r"allreduce_: the tensor is a leaf that requires grad.*use allreduce\(\), or call it",
    ),
    "leaf in a group": (
        lambda: md.grouped_allreduce_([T, leaf()]),
        ValueError,
        r"grouped_allreduce_: tensor 1 is a leaf that requires grad",
    ),
}

# Names, operations, factors.
ARGUMENTS: dict[str, Case] = {
    "average and op": (
        lambda: md.allreduce(T, average=True, op=md.Sum),
        ValueError,
        r"allreduce: both average=True and op=Sum are given, expected one of them",
    ),
    "name as average": (
        lambda: md.allreduce(T, untyped("grad")),
        TypeError,
        r"allreduce: average is 'grad' \(str\), expected True, False or None; pass a name as",
    ),
    "compression in the place of op": (
        lambda: md.allreduce(T, True, "grad", untyped(md.Compression.fp16)),
        TypeError,
        r"allreduce: op is <class .*pass a Compressor as compression=",
    ),
    "average of bool": (
        lambda: md.allreduce(torch.ones(2).bool(), name="b"),
        ValueError,
        r"allreduce of 'b': op Average has no meaning for dtype bool\. Use Sum or Max for a lo",
    ),
    "min of complex": (
        lambda: md.allreduce(torch.ones(2, dtype=torch.complex64), op=md.Min, name="c"),
        ValueError,
        r"allreduce of 'c': op Min has no meaning for dtype complex64\. Complex numbers have no or",
    ),
    "scaled bool": (
        lambda: md.allreduce(torch.ones(2).bool(), op=md.Sum, prescale_factor=0.5, name="b"),
        ValueError,
        r"prescale_factor and postscale_factor must be 1 for dtype bool, got 0\.5",
    ),
    "factor text": (
        lambda: md.allreduce(T, prescale_factor=untyped("2")),
        TypeError,
        r"allreduce: prescale_factor is '2' \(str\), expected a number",
    ),
    "factor bool": (
        lambda: md.reducescatter(T, prescale_factor=True),
        TypeError,
        r"prescale_factor is True \(bool\), expected a number",
    ),
    "factor nan": (
        lambda: md.allreduce(T, prescale_factor=float("nan"), name="f"),
        ValueError,
        r"allreduce of 'f': prescale_factor is nan and .*expected finite numbers",
    ),
    "name number": (
        lambda: md.allreduce(T, name=untyped(7)),
        TypeError,
        r"allreduce: name is 7 \(int\), expected a str or None",
    ),
    "name empty": (
        lambda: md.allgather(T, name=""),
        ValueError,
        r"allgather: name is empty, expected a str that all ranks use, or None",
    ),
    "name no utf-8": (
        lambda: md.allreduce(T, name="\udc80"),
        ValueError,
        r"allreduce: name is '\\udc80', which cannot be sent to other ranks: surrogates not",
    ),
    "name too long": (
        lambda: md.broadcast(T, 0, name="n" * 5000),
        ValueError,
        r"broadcast: the name 'n{40}…' has 5000 bytes, expected at most 4096",
    ),
    "process set number": (
        lambda: md.allreduce(T, process_set=untyped(0)),
        TypeError,
        r"allreduce: process_set is 0 \(int\), expected a ProcessSet such as",
    ),
    "compression text": (
        lambda: md.allreduce(T, compression=untyped("fp16")),
        TypeError,
        r"allreduce: compression is 'fp16', expected a Compressor such as",
    ),
    "compression result": (
        lambda: md.allreduce_async_(T, compression=untyped(CompressesToAList)),
        TypeError,
        r"compression\.compress: got list, expected a torch\.Tensor",
    ),
}

# Roots and splits.
PLACES: dict[str, Case] = {
    "state of no optimizer": (
        lambda: md.broadcast_optimizer_state(untyped(torch.nn.Linear(2, 2)), 0),
        ValueError,
        r"optimizer is Linear, expected a torch\.optim\.Optimizer; send a model's parameters",
    ),
    "root too large": (
        lambda: md.broadcast(T, 1, name="b"),
        ValueError,
        r"broadcast of 'b': root_rank 1 is not a rank of this job of size 1, expected 0 to 0",
    ),
    "root huge": (
        lambda: md.broadcast_async(T, 2**40),
        ValueError,
        r"broadcast_async: root_rank is 1099511627776, expected a rank of the job",
    ),
    "root float": (
        lambda: md.broadcast(T, untyped(0.0)),
        TypeError,
        r"broadcast: root_rank is 0\.0 \(float\), expected an int",
    ),
    "splits too many": (
        lambda: md.alltoall(T, [2, 2], name="a"),
        ValueError,
        r"alltoall of 'a': splits has 2 entries, expected one for each of the 1 ranks",
    ),
    "splits negative": (
        lambda: md.alltoall(T, [-4], name="a"),
        ValueError,
        r"alltoall of 'a': splits\[0\] is -4, expected 0 to the first dimension 4",
    ),
    "splits sum": (
        lambda: md.alltoall(T, [3], name="a"),
        ValueError,
        r"alltoall of 'a': splits sum to 3, expected the first dimension 4",
    ),
    "splits beyond 64 bits": (
        lambda: md.alltoall(T, [2**70]),
        ValueError,
        r"alltoall: splits\[0\] is 1180591620717411303424, expected a number of rows",
    ),
    "splits number": (
        lambda: md.alltoall(T, untyped(4)),
        TypeError,
        r"alltoall: splits is int, expected a list of ints, a 1-d integer tensor or None",
    ),
    "splits float tensor": (
        lambda: md.alltoall_async(T, torch.tensor([4.0])),
        ValueError,
        r"alltoall_async: splits is a torch\.float32 tensor of shape \[1\], expected integers",
    ),
}

# Handles.
HANDLES: dict[str, Case] = {
    "wait for an unknown one": (
        lambda: md.synchronize(987654321),
        ValueError,
        r"handle 987654321 is unknown: it was already synchronized, or no _async call",
    ),
    "poll an unknown one": (lambda: md.poll(987654321), ValueError, r"handle 987654321 is unknown"),
    "zero": (lambda: md.poll(0), ValueError, r"handle 0 is unknown: handles are numbered from 1"),
    "tensor": (lambda: md.poll(untyped(T)), TypeError, r"handle is tensor\(.*\(Tensor\), expected"),
    "bool": (lambda: md.poll(True), TypeError, r"handle is True \(bool\), expected the int"),
}

CASES: dict[str, Case] = {
    f"{table}: {name}": case
    for table, cases in {
        "tensor": NOT_TENSORS,
        "kind": KINDS,
        "in place": IN_PLACE,
        "argument": ARGUMENTS,
        "place": PLACES,
        "handle": HANDLES,
    }.items()
    for name, case in cases.items()
}


@pytest.fixture(autouse=True)
def _nothing_was_enqueued(job: None) -> Iterator[None]:
    before = md.stats()["tensors"]
    yield
    assert md.stats()["tensors"] == before
    assert md.allreduce(torch.ones(1)).item() == 1.0


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_is_refused(case: Case) -> None:
    call, error, text = case
    with pytest.raises(error, match=f"(?s){text}"):
        call()


def test_there_are_many_of_them() -> None:
    assert len(CASES) + 4 * len(UNSUPPORTED) >= 50
    assert len({text for _, _, text in CASES.values()}) == len(CASES)
