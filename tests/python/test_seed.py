"""seed_everything: every generator starts from the number."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mydist as md


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(()).item()


@pytest.mark.usefixtures("job")
def test_seeds_all_generators() -> None:
    assert md.seed_everything(5) == 5 + md.rank()
    first = draws()
    second = draws()
    assert md.seed_everything(5) == 5
    assert draws() == first
    assert all(a != b for a, b in zip(first, second, strict=True))
    md.seed_everything(6)
    assert all(a != b for a, b in zip(first, draws(), strict=True))


@pytest.mark.usefixtures("no_job")
def test_without_the_offset_no_job_is_needed() -> None:
    assert md.seed_everything(2**62, rank_offset=False) == 2**62
    with pytest.raises(ValueError, match="mydist has not been initialized"):
        md.seed_everything(1)


def test_does_not_load_numpy(
    run_python: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import mydist as md; print(md.seed_everything(3, rank_offset=False))"
    )
    assert run_python(code).stdout == "3\n"


@pytest.mark.parametrize(
    ("seed", "error", "text"),
    [
        (-1, ValueError, "seed is -1, expected a number from 0 to 2"),
        (2**62 + 1, ValueError, "expected a number from 0 to 2"),
        (1.0, TypeError, r"seed is 1\.0 \(float\), expected an int"),
        ("1", TypeError, r"seed is '1' \(str\)"),
        (True, TypeError, "seed is True"),
        (None, TypeError, "seed is None"),
    ],
)
def test_wrong_seeds(seed: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        md.seed_everything(seed, rank_offset=False)
