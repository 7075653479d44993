"""Automatic names: calls that other ranks hear of use up a number, and no others do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mydist as md
from mydist.job.names import resolve_kept_name, resolve_name, restart_names, submit

pytestmark = pytest.mark.usefixtures("job")


@pytest.fixture(autouse=True)
def numbers_from_one() -> None:
    restart_names()


def test_a_name_that_is_kept_has_not_the_form_of_a_call() -> None:
    assert [resolve_kept_name("layer") for _ in range(2)] == ["layer.object.1", "layer.object.2"]
    restart_names()
    assert resolve_kept_name("layer") == "layer.object.1"


def test_a_refused_call_gives_its_number_back() -> None:
    refused = torch.ones(2).to(torch.uint16)
    for _ in range(2):
        with pytest.raises(TypeError, match="uint16"):
            md.allreduce(refused)
    assert resolve_name("allreduce", None) == "allreduce.noname.1"
    with pytest.raises(TypeError, match=r"allreduce\.noname\.2"):
        md.allreduce_(refused)
    md.allreduce(torch.ones(2))
    assert resolve_name("allreduce", None) == "allreduce.noname.3"


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
@pytest.mark.parametrize(("half", "used"), [("none", 0), ("compress", 0), ("decompress", 1)])
def test_a_compressor_that_fails_first_uses_up_no_number(form: str, half: str, used: int) -> None:
    compression: Any = None if half == "none" else Compressor(half)
    for _ in range(2):
        with pytest.raises((TypeError, RuntimeError), match=f"no {half}|expected a Compressor"):
            result = getattr(md, form)(torch.ones(2), compression=compression)
            md.synchronize(result)
    call = form.rstrip("_").removesuffix("_async")
    assert resolve_name(call, None) == f"{call}.noname.{2 * used + 1}"


def refuse(error: Exception) -> None:
    raise error


def test_a_call_that_failed_on_all_ranks_keeps_it() -> None:
    with pytest.raises(md.MismatchError):
        submit(resolve_name("allgather", None), refuse, md.MismatchError("the ranks have compared"))
    assert resolve_name("allgather", None) == "allgather.noname.2"


def test_the_smallest_number_comes_back_first() -> None:
    names = [resolve_name("gather", None) for _ in range(3)]
    for name in (names[0], names[2], names[1]):
        with pytest.raises(ValueError, match="refused"):
            submit(name, refuse, ValueError("refused"))
    assert [resolve_name("gather", None) for _ in range(4)] == [*names, "gather.noname.4"]


def test_names_of_the_user_are_left_alone() -> None:
    assert resolve_name("scatter", None) == "scatter.noname.1"
    with pytest.raises(ValueError, match="refused"):
        submit("scatter.noname.1", refuse, ValueError("refused"))
    assert resolve_name("scatter", None) == "scatter.noname.2"
