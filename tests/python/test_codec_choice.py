"""Compression.auto without ranks: what it takes for given costs and links."""

from __future__ import annotations

import pytest

import mydist as md
from mydist.codecs.auto import ERRORS, choose, measure_candidates
from mydist.codecs.cost import Cost

COSTS = {"bf16": Cost(0.5, 0.02, 0.02, "sums"), "int8": Cost(0.25, 0.1, 0.1, "slices")}


@pytest.mark.parametrize(
    ("gbits", "wanted"),
    # int8 saves 6 ms per MB at 1 Gbit/s and takes 0.25; bf16 saves 4 and takes 0.04.
    [(0.1, "int8"), (5, "int8"), (15, "bf16"), (60, "bf16"), (95, "none"), (1000, "none")],
)
def test_the_link_decides(gbits: float, wanted: str) -> None:
    chosen = choose(COSTS, gbits, 2, 0.01)
    assert chosen.name == wanted
    assert chosen.times["none"] == pytest.approx(8 / gbits)
    assert chosen.times["int8"] == pytest.approx(0.25 + 2 / gbits)


@pytest.mark.parametrize(
    ("max_error", "wanted", "left_out"),
    [(0.01, "int8", ()), (0.003, "bf16", ("int8",)), (0.001, "none", ("bf16", "int8"))],
)
def test_what_has_too_large_an_error_is_left_out(
    max_error: float, wanted: str, left_out: tuple[str, ...]
) -> None:
    chosen = choose(COSTS, 0.1, 2, max_error)
    assert (chosen.name, chosen.left_out) == (wanted, left_out)
    for name in left_out:
        assert f"{name} has an error of {ERRORS[name]:.2g}" in chosen.reason()
    assert "2 hosts with links of 0.1 Gbit/s: none 80" in chosen.reason()


def test_slow_processors_make_it_send_values_as_they_are() -> None:
    slow = {name: Cost(cost.share, 50, 50, cost.way) for name, cost in COSTS.items()}
    assert choose(slow, 1.0, 2, 0.01).name == "none"


def test_what_is_measured_is_what_may_be_taken() -> None:
    costs = measure_candidates()
    assert {"none", *costs} == set(ERRORS)
    assert costs["bf16"].share == 0.5 and costs["int8"].share == pytest.approx(0.254, abs=0.001)
    assert all(0 < cost.encode_ms < 100 and 0 < cost.decode_ms < 100 for cost in costs.values())


def test_auto_cannot_encode() -> None:
    assert not md.Compression.auto().has_state
    with pytest.raises(TypeError, match=r"auto\(max_error=0.01\) encodes nothing"):
        md.Compression.auto().core()
