"""`mydist.bench codecs` without ranks: every codec has a cost, and a line says its gain."""

from __future__ import annotations

import math

import pytest

import mydist as md
from mydist.bench.codecs import (
    CodecPlan,
    Sums,
    cost_row,
    every_codec,
    format_costs,
    format_sums,
    measure_costs,
)
from mydist.bench.results import Measured, Subject, make_row
from mydist.codecs.codec import Codec
from mydist.codecs.cost import RAW, Cost, has_cost
from mydist.optim.encoding.exchanges import EXCHANGES


def test_every_codec_is_measured_at_every_size() -> None:
    kinds = [kind for kind in vars(md.Compression).values() if isinstance(kind, type)]
    names = {k.name for k in kinds if issubclass(k, Codec) and k.way in EXCHANGES}
    assert {codec.name for codec in every_codec()} == names
    rows = measure_costs(CodecPlan([64 << 10, 128 << 10], 0, 1, 2))
    measured = [codec for codec in every_codec() if has_cost(codec)]
    assert len(rows) == 2 * (3 + len(measured))
    for row in rows:
        is_raw = row.codec == "none"
        assert row.bytes_per_value == 4 if is_raw else 0 < row.bytes_per_value < 4
        assert is_raw or (row.encode_ms_per_mb > 0 and row.decode_ms_per_mb > 0)
    (int8,) = (r for r in rows if r.codec == "int8" and r.size_bytes == 64 << 10)
    assert int8.bytes_per_value == pytest.approx(1 + 4 / 256, rel=0.01)


@pytest.mark.parametrize("way", ["slices", "sums", "gathers"])
@pytest.mark.parametrize("hosts", [2, 5])
def test_at_the_speed_that_is_told_the_codec_takes_as_long_as_raw_values(
    way: str, hosts: int
) -> None:
    cost = Cost(0.25, 0.05, 0.03, way)
    speed = cost.pays_below(hosts)
    assert cost.sum_ms(hosts, speed) == pytest.approx(RAW.sum_ms(hosts, speed))
    assert cost.sum_ms(hosts, speed / 2) < RAW.sum_ms(hosts, speed / 2)


def test_two_hosts_send_all_bytes_once_and_decode_half_of_them_twice() -> None:
    cost = Cost(0.25, 0.05, 0.04, "slices")
    assert cost.link_ms(2, 1.0) == pytest.approx(2.0)
    assert cost.cpu_ms(2) == pytest.approx(0.05 + 1.5 * 0.04)
    assert RAW.sum_ms(2, 0.1) == pytest.approx(80.0)


def test_gathered_payloads_may_be_more_than_the_values() -> None:
    assert Cost(0.25, 0.05, 0.03, "gathers").pays_below(9) == 0
    assert Cost(0.25, 0.0, 0.0, "sums").pays_below(2) == math.inf


def test_a_line_says_below_which_speed_a_codec_pays() -> None:
    costs = {"none": RAW, "x(a=1)": Cost(0.25, 0.5, 0.5, "sums"), "y": Cost(1.1, 1, 1, "sums")}
    rows = [
        cost_row(name, size, 2, cost)
        for size in (1 << 20, 64 << 20)
        for name, cost in costs.items()
    ]
    *_, none, x, y = format_costs(rows).splitlines()
    assert none.split() == ["none", "80.00", "8.00", "0.80", "0.08"]
    assert x.endswith("pays below 6 Gbit/s") and y.endswith("pays at no speed")
    assert max(map(len, format_costs(rows).splitlines())) <= 100


def test_sums_in_a_host_say_for_which_links_codecs_pay() -> None:
    def sums(name: str, time_us: float, saved: float) -> Sums:
        row = make_row(Subject("encoded-sum", name, "float32", 2, 8), Measured([time_us]))
        return Sums(row, 0.01, saved)

    # 8 Mbit less for 1 ms more; and nothing more.
    measured = [sums("none", 500.0, 0.0), sums("a", 1500.0, 1e6), sums("b", 400.0, 1e6)]
    text = format_sums(measured, one_host=True)
    assert text.endswith("over a link these sums pay: a below 8 Gbit/s, b at any speed")
    assert "these sums pay" not in format_sums(measured, one_host=False)
