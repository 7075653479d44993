"""check_consistency and ConsistencyCheck in one process: arguments, and when a check is due."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import mydist as md
from mydist import consistency
from mydist.consistency import ConsistencyCheck, check_interval


class _Lazy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LazyLinear(2)


TENSOR = torch.ones(2)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch is about to drop them; until then they can turn up.
    QUANTIZED = torch.quantize_per_tensor(TENSOR, 0.1, 0, torch.qint8)
WRONG: list[tuple[Any, type[Exception], str]] = [
    (5, TypeError, "got int, expected a module"),
    (TENSOR, TypeError, "got Tensor, expected a module, model.state_dict()"),
    ([TENSOR], TypeError, "got an entry Tensor that is not a pair of name and tensor"),
    ([("a", TENSOR, 1)], TypeError, "got an entry tuple that is not a pair"),
    ({"a": 3}, TypeError, "'a' is int, expected a tensor; compare other values with allgather_"),
    ([("a", TENSOR), ("a", TENSOR)], ValueError, "the name 'a' is given twice"),
    ({"a": torch.ones(1, device="meta")}, ValueError, "'a' is on the meta device"),
    ({"b": TENSOR.to_sparse()}, ValueError, "'b' is of layout torch.sparse_coo"),
    ({"q": QUANTIZED}, ValueError, "'q' is quantized, expected a dense tensor"),
    (_Lazy(), ValueError, "'layer.weight' has no shape yet; run the lazy module once"),
]


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(("parameters", "kind", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_parameters(parameters: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        md.check_consistency(parameters)
    assert text in str(caught.value) and str(caught.value).startswith("check_consistency: ")


@pytest.mark.usefixtures("job")
def test_wrong_process_set() -> None:
    with pytest.raises(TypeError, match="check_consistency: process_set is 3"):
        md.check_consistency(torch.nn.Linear(1, 1), process_set=3)  # type: ignore[arg-type]


@pytest.mark.usefixtures("job")
def test_one_rank_is_consistent_with_itself() -> None:
    model = torch.nn.Linear(2, 2)
    before = md.stats()["tensors"]
    for parameters in (model, model.state_dict(), model.named_parameters(), []):
        md.check_consistency(parameters)
    assert md.stats()["tensors"] == before, "something was sent"


@pytest.mark.parametrize(("text", "value"), [("", 0), ("0", 0), ("7", 7), ("-1", -1)])
def test_interval(monkeypatch: pytest.MonkeyPatch, text: str, value: int) -> None:
    monkeypatch.setenv("MYDIST_CHECK_CONSISTENCY", text)
    monkeypatch.setenv("MYDIST_CACHE_CAPACITY", "of no concern here")
    assert check_interval() == value


@pytest.mark.parametrize("text", ["-2", "off", "1.5", "1000000001"])
def test_bad_interval(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MYDIST_CHECK_CONSISTENCY", text)
    with pytest.raises(ValueError, match="MYDIST_CHECK_CONSISTENCY=.*from -1 to 1000000000"):
        check_interval()


def steps_with_check(
    monkeypatch: pytest.MonkeyPatch, every: int, joined_after: int | None = None
) -> list[int]:
    """The steps, of ten, before which parameters are compared; at_step is called twice each."""
    compared: list[str] = []
    monkeypatch.setattr(consistency, "_compare", lambda what: compared.append(what.call))
    joins = 0
    monkeypatch.setattr(consistency, "join_count", lambda: joins)
    check = ConsistencyCheck(every)
    for step in range(1, 11):
        check.at_step(iter([]))
        check.at_step(iter([]))
        check.step_done()
        joins += step == joined_after
    return [int(call.split("step ")[1].split()[0]) for call in compared]


@pytest.mark.parametrize(
    ("every", "steps"), [(-1, []), (0, [1]), (1, list(range(1, 11))), (3, [1, 4, 7, 10])]
)
def test_when_a_check_is_due(monkeypatch: pytest.MonkeyPatch, every: int, steps: list[int]) -> None:
    assert steps_with_check(monkeypatch, every) == steps


def test_after_a_join_steps_are_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before it 1 and 4; five steps were made, so the next is after three more.
    assert steps_with_check(monkeypatch, 3, joined_after=5) == [1, 4, 9]
    assert steps_with_check(monkeypatch, 0, joined_after=5) == [1]
