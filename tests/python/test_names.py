"""Automatic names: each call without a name uses up a number, also one that is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mydist as md
from mydist.job.names import resolve_name, restart_names, submit, with_kept_name

pytestmark = pytest.mark.usefixtures("job")


@pytest.fixture(autouse=True)
def numbers_from_one() -> None:
    restart_names()


def test_an_object_keeps_the_name_of_its_first_call() -> None:
    for number in (1, 2):
        with pytest.raises(ValueError, match="refused"):
            with_kept_name("layer", 0, refuse_call, ValueError("refused"))
        made = with_kept_name("layer", 0, lambda name: name.upper())
        assert made == (f"layer.object.{number}", f"LAYER.OBJECT.{number}")
    with pytest.raises(md.MismatchError):
        with_kept_name("layer", 0, refuse_call, md.MismatchError("the ranks have compared"))
    assert with_kept_name("layer", 0, len)[0] == "layer.object.4"
    restart_names()
    assert with_kept_name("layer", 0, len)[0] == "layer.object.1"


def refuse_call(error: Exception, name: str) -> None:
    raise error


def test_a_refused_call_uses_up_its_number() -> None:
    refused = torch.ones(2).to(torch.uint16)
    for number in (1, 2):
        with pytest.raises(TypeError, match=rf"allreduce\.noname\.{number}': dtype uint16"):
            md.allreduce(refused)
    with pytest.raises(TypeError, match="got list"):
        md.allreduce([1.0])  # type: ignore[arg-type]
    assert resolve_name("allreduce", None) == "allreduce.noname.4"
    md.allreduce(torch.ones(2))
    with pytest.raises(ValueError, match="root_rank"):
        md.broadcast_object(1, root_rank=99)
    assert resolve_name("broadcast_object", None) == "broadcast_object.noname.2"


class Compressor(md.Compressor):
    """Raises in one of its two halves."""

    def __init__(self, half: str) -> None:
        self._half = half

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:  # type: ignore[override]
        return self._pass(tensor, "compress"), None

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # type: ignore[override]
        return self._pass(tensor, "decompress")

    def _pass(self, tensor: torch.Tensor, half: str) -> torch.Tensor:
        if self._half == half:
            raise RuntimeError(f"no {half}")
        return tensor


@pytest.mark.parametrize("form", ["allreduce", "allreduce_async", "allreduce_", "reducescatter"])
@pytest.mark.parametrize("half", ["none", "compress", "decompress"])
def test_a_compressor_that_fails_uses_up_a_number(form: str, half: str) -> None:
    compression: Any = None if half == "none" else Compressor(half)
    for _ in range(2):
        with pytest.raises((TypeError, RuntimeError), match=f"no {half}|expected a Compressor"):
            result = getattr(md, form)(torch.ones(2), compression=compression)
            md.synchronize(result)
    call = form.rstrip("_").removesuffix("_async")
    assert resolve_name(call, None) == f"{call}.noname.3"


def refuse(error: Exception) -> None:
    raise error


def test_a_call_that_failed_on_all_ranks_keeps_it() -> None:
    with pytest.raises(md.MismatchError):
        submit(resolve_name("allgather", None), refuse, md.MismatchError("the ranks have compared"))
    assert resolve_name("allgather", None) == "allgather.noname.2"


def test_names_of_the_user_are_left_alone() -> None:
    assert resolve_name("scatter", None) == "scatter.noname.1"
    with pytest.raises(ValueError, match="refused"):
        submit("scatter.noname.1", refuse, ValueError("refused"))
    assert resolve_name("scatter", None) == "scatter.noname.2"
