"""Codecs in whole jobs: each trains a small network as well as exact gradients do."""

from __future__ import annotations

import json
import re

import pytest
from deep import deep

from multiproc.job import WORKERS, launch

# One of each kind in every run; the others as often as make deep runs.
FEW = ["int8", "onebit", "topk"]
OTHERS = [
    *("fp8", "signsgd", "qsgd", "terngrad", "natural", "randomk", "threshold", "dgc", "powersgd")
]


@pytest.mark.parametrize("names", [FEW, deep(OTHERS)], ids=["few", "others"])
@pytest.mark.parametrize(("np", "where"), [(2, "inside a host"), (4, "between hosts")])
def test_each_codec_learns_the_digits(np: int, where: str, names: list[str]) -> None:
    force = where == "inside a host"
    extra = {} if force else {"TEST_RANKS_PER_HOST": "2"}
    worker = str(WORKERS / "codec_digits.py")
    outcome = launch(np, "gloo", worker, str(int(force)), *names, timeout=200, env=extra)
    (text,) = re.findall(r"TRAINED (\{.*\})", outcome.expect_success().output)
    results = json.loads(text)
    assert list(results) == names
    for name, found in results.items():
        assert found["accuracy"] >= 0.95, results
        assert 0 < found["codec_wire_bytes"] < 0.6 * found["codec_raw_bytes"], (name, found)
