"""The states of the random generators of this process, as values that torch.save can hold.

Python's, torch's on the CPU, numpy's global one once numpy is loaded, and torch's of the current
CUDA device once CUDA is in use.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def capture_random_state() -> dict[str, Any]:
    """The states; made of numbers, texts, tuples, lists and uint8 tensors only."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        states["numpy"] = _plain(_numpy_random().get_state(legacy=False))
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_state(states: Mapping[str, Any]) -> None:
    """Puts back what `capture_random_state` gave. A generator that is not there is left out."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        with contextlib.suppress(ImportError):  # Without numpy nothing draws from it.
            _numpy_random().set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _numpy_random() -> Any:
    # Any, so that mydist can be type-checked without numpy.
    return importlib.import_module("numpy.random")


def _plain(value: Any) -> Any:
    """Arrays become lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value
