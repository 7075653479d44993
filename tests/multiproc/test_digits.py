"""Each strategy trains a small convolutional network on real images."""

from __future__ import annotations

import json
import re

import pytest

from multiproc.job import WORKERS, launch

# Slow: a run of the whole suite has it every other time.
pytestmark = pytest.mark.turns(2)


def test_each_strategy_learns_the_digits() -> None:
    outcome = launch(2, "local", str(WORKERS / "digits.py"), timeout=120).expect_success()
    found = re.search(r"ACCURACIES (\{.*\})", outcome.output)
    assert found, outcome.output
    accuracies = json.loads(found[1])
    assert len(accuracies) == 11
    low = {name: value for name, value in accuracies.items() if value < 0.95}
    assert not low, accuracies
