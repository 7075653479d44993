"""Wrong arguments: the error's type and text, raised before anything is enqueued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from refusals import expect_refusal, refusals
from soon import soon

import mydist as md

T = torch.ones(4)
M = torch.ones(4, 3)

pytestmark = pytest.mark.usefixtures("job")


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


UNSUPPORTED = ["uint16", "uint32", "uint64", "float8_e5m2fnuz", "complex32"]


@pytest.mark.parametrize("dtype", UNSUPPORTED)
@pytest.mark.parametrize("call", [md.allreduce, md.allgather, md.alltoall, md.reducescatter])
def test_unsupported_dtypes_are_named(call: Callable[..., object], dtype: str) -> None:
    tensor = torch.empty(4, dtype=getattr(torch, dtype))
    text = (
        rf"{call.__name__} of 'odd': dtype {dtype} is not supported\. Supported: uint8, .*Convert"
    )
    with soon(), pytest.raises(TypeError, match=text):
        call(tensor, name="odd")


CASES = refusals(
    r"""
# What is no tensor at all.
md.allreduce([1.0])
    TypeError: allreduce: got list, expected a
md.broadcast('x', 0)
    TypeError: broadcast: got str, expected a
md.allgather_async(())
    TypeError: allgather_async: got tuple
md.grouped_allreduce(M)
    TypeError: grouped_allreduce: got Tensor, expected a list or tuple of tensors
md.grouped_reducescatter([T, 2.0])
    TypeError: grouped_reducescatter: element 1 is float, expected a torch.Tensor
md.grouped_allreduce([])
    ValueError: grouped_allreduce: got an empty list, expected at least one tensor
# Tensors that cannot travel.
md.allreduce(T.to_sparse(), name='s')
    ValueError: allreduce of 's': its layout is Sparse, expected a dense tensor…to_dense()
md.allreduce(nested(), name='n')
    ValueError: allreduce of 'n': it is a nested tensor, expected a dense one
md.broadcast(torch.ones(3, device='meta'), 0, name='m')
    ValueError: broadcast of 'm': it is on the meta device and has no data…to_empty
md.allreduce(quantized(), name='q')
    TypeError: allreduce of 'q': dtype quint8 is quantized…dequantize()
md.allreduce(resized_to_nothing(), name='r')
    ValueError: allreduce of 'r': its storage was resized to 0…expected 4 elements
torch.vmap(lambda row: md.allreduce(row, name='v'))(M)
    TypeError: allreduce of 'v': it is a tensor subclass or transform that intercepts
md.alltoall(torch.tensor(1.0), name='z')
    ValueError: alltoall of 'z': got a 0-d tensor, expected at least one dimension…reshape(1)
# What cannot be written in place.
md.allreduce_(expanded(), name='e')
    ValueError: allreduce of 'e': several of its elements share memory…clone()
md.allreduce_(overlapping_view(), name='o')
    ValueError: allreduce of 'o': several of its elements share memory
md.grouped_allreduce_([T, M, T], name='g')
    ValueError: allreduce of 'g.…': it shares its memory with 'g.…' of the same group
md.allreduce_(leaf())
    ValueError: allreduce_: the tensor is a leaf that requires grad…use allreduce(), or call it
md.grouped_allreduce_([T, leaf()])
    ValueError: grouped_allreduce_: tensor 1 is a leaf that requires grad
# Names, operations, factors.
md.allreduce(T, average=True, op=md.Sum)
    ValueError: allreduce: both average=True and op=Sum are given, expected one of them
md.allreduce(T, 'grad')
    TypeError: allreduce: average is 'grad' (str), expected True, False or None; pass a name as
md.allreduce(T, True, 'grad', md.Compression.fp16)
    TypeError: allreduce: op is <class …pass a Compressor as compression=
md.allreduce(torch.ones(2).bool(), name='b')
    ValueError: allreduce of 'b': op Average has no meaning for dtype bool. Use Sum or Max for a lo
md.allreduce(torch.ones(2, dtype=torch.complex64), op=md.Min, name='c')
    ValueError: allreduce of 'c': op Min has no meaning for dtype complex64. Complex numbers have no
md.allreduce(torch.ones(2).bool(), op=md.Sum, prescale_factor=0.5, name='b')
    ValueError: prescale_factor and postscale_factor must be 1 for dtype bool, got 0.5
md.allreduce(T, prescale_factor='2')
    TypeError: allreduce: prescale_factor is '2' (str), expected a number
md.reducescatter(T, prescale_factor=True)
    TypeError: prescale_factor is True (bool), expected a number
md.allreduce(T, prescale_factor=float('nan'), name='f')
    ValueError: allreduce of 'f': prescale_factor is nan and …expected finite numbers
md.allreduce(T, name=7)
    TypeError: allreduce: name is 7 (int), expected a str or None
md.allgather(T, name='')
    ValueError: allgather: name is empty, expected a str that all ranks use, or None
md.allreduce(T, name='\udc80')
    ValueError: allreduce: name is '\udc80', which cannot be sent to other ranks: surrogates not
md.broadcast(T, 0, name='n' * 5000)
    ValueError: broadcast: the name 'nnnn…' has 5000 bytes, expected at most 4096
md.allreduce(T, process_set=0)
    TypeError: allreduce: process_set is 0 (int), expected a ProcessSet such as
md.allreduce(T, compression='fp16')
    TypeError: allreduce: compression is 'fp16', expected a Compressor such as
md.allreduce_async_(T, compression=CompressesToAList)
    TypeError: compression.compress: got list, expected a torch.Tensor
# Roots and splits.
md.broadcast_optimizer_state(torch.nn.Linear(2, 2), 0)
    ValueError: optimizer is Linear, expected a torch.optim.Optimizer; send a model's parameters
md.broadcast(T, 1, name='b')
    ValueError: broadcast of 'b': root_rank 1 is not a rank of this job of size 1, expected 0 to 0
md.broadcast_async(T, 2 ** 40)
    ValueError: broadcast_async: root_rank is 1099511627776, expected a rank of the job
md.broadcast(T, 0.0)
    TypeError: broadcast: root_rank is 0.0 (float), expected an int
md.alltoall(T, [2, 2], name='a')
    ValueError: alltoall of 'a': splits has 2 entries, expected one for each of the 1 ranks
md.alltoall(T, [-4], name='a')
    ValueError: alltoall of 'a': splits[0] is -4, expected 0 to the first dimension 4
md.alltoall(T, [3], name='a')
    ValueError: alltoall of 'a': splits sum to 3, expected the first dimension 4
md.alltoall(T, [2 ** 70])
    ValueError: alltoall: splits[0] is 1180591620717411303424, expected a number of rows
md.alltoall(T, 4)
    TypeError: alltoall: splits is int, expected a list of ints, a 1-d integer tensor or None
md.alltoall_async(T, torch.tensor([4.0]))
    ValueError: alltoall_async: splits is a torch.float32 tensor of shape [1], expected integers
# Handles.
md.synchronize(987654321)
    ValueError: handle 987654321 is unknown: it was already synchronized, or no _async call
md.poll(987654321)
    ValueError: handle 987654321 is unknown
md.poll(0)
    ValueError: handle 0 is unknown: handles are numbered from 1
md.poll(T)
    TypeError: handle is tensor(…(Tensor), expected
md.poll(True)
    TypeError: handle is True (bool), expected the int
"""
)


@pytest.fixture(autouse=True)
def _nothing_was_enqueued(job: None) -> Iterator[None]:
    before = md.stats()["tensors"]
    yield
    assert md.stats()["tensors"] == before
    assert md.allreduce(torch.ones(1)).item() == 1.0


@pytest.mark.parametrize(("call", "error"), CASES)
def test_is_refused(call: str, error: str) -> None:
    if "quantized" in call and not hasattr(torch, "quantize_per_tensor"):
        pytest.skip("later versions of torch drop quantized dtypes")
    with soon():
        expect_refusal(call, error, globals())
