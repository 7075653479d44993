"""Each target takes the inputs that are kept: what once was found stays a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.python.all_targets import TARGETS
from fuzz.python.target import Target

CORPUS = Path(__file__).parents[1] / "corpus"


@pytest.mark.parametrize("target", [pytest.param(each, id=each.name) for each in TARGETS.values()])
def test_the_kept_inputs_are_taken(target: Target) -> None:
    files = sorted((CORPUS / target.name).iterdir())
    assert files
    for file in files:
        try:
            target.run(file.read_bytes())
        except BaseException as error:
            error.add_note(f"input: {file}")
            raise


# A stream may end anywhere, and so may what a user writes.
@pytest.mark.parametrize("target", [pytest.param(each, id=each.name) for each in TARGETS.values()])
def test_seeds_are_taken_however_cut(target: Target) -> None:
    assert target.seeds
    for seed in target.seeds:
        for size in range(len(seed) + 1):
            target.run(seed[:size])
