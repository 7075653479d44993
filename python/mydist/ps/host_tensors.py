"""The tensors of a call on a table, as the servers' client reads and writes them: on the host."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..job.error_text import wrong_type
from . import binding

__all__ = ["host_floats", "prepare_output"]

# From this size on malloc takes memory from the system for each tensor, and gives it back with it.
_OWN_MAPPING = 32 << 20
# Of an argument by its name: see host_floats.
Check = Callable[[str, object], torch.Tensor]


def host_floats(what: str, tensor: object, shape: torch.Size, wanted: str) -> torch.Tensor:
    """The argument as neighbouring float32 on the host: itself, or a copy.

    Args:
        what: the call and the argument, for errors.
        tensor: the argument.
        shape: that it must have.
        wanted: what an error says of the shape, such as "expected [2, 3]".

    Raises:
        TypeError: it is no dense tensor of float32.
        ValueError: it has another shape.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.is_sparse:
        raise wrong_type(what, tensor, "a dense torch.Tensor")
    if tensor.dtype != torch.float32:
        raise TypeError(f"{what} is {tensor.dtype}, expected torch.float32")
    if tensor.shape != shape:
        raise ValueError(f"{what} has shape {list(tensor.shape)}, {wanted}")
    return tensor.detach().to("cpu").contiguous()


def prepare_output(
    call: str, out: torch.Tensor | None, shape: torch.Size, check: Check
) -> tuple[torch.Tensor, Callable[[], torch.Tensor]]:
    """Where a call writes its result on the host, and what gives that to the caller afterwards.

    Args:
        call: for errors.
        out: the caller's tensor, if it has one.
        shape: of the result.
        check: gives `out` on the host, or raises.

    Raises:
        ValueError: autograd computes with `out`; also as `check`.
        TypeError: as `check`.
    """
    if isinstance(out, torch.Tensor) and out.requires_grad and not out.is_leaf:
        raise ValueError(
            f"{call}: out is a result that autograd tracks; give a tensor without a gradient, such "
            "as out.detach()"
        )
    if out is not None and check("out", out).data_ptr() == out.data_ptr():
        target = out
    else:
        target = torch.empty(shape, dtype=torch.float32, device="cpu")
        if target.nbytes >= _OWN_MAPPING:
            binding.load().take_large_pages(target.data_ptr(), target.nbytes)

    def finish() -> torch.Tensor:
        if out is None:
            return target
        if target is not out:
            with torch.no_grad():
                out.copy_(target)
        elif not out.is_inference():
            torch.autograd.graph.increment_version(out)  # Autograd must know that it has changed.
        return out

    return target, finish
