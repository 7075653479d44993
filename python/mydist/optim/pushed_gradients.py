"""What servers accept of gradients, found before any part of a step is taken."""

from __future__ import annotations

from collections.abc import Iterable

import torch

# Tables are float32.
_LARGEST = torch.finfo(torch.float32).max


@torch.no_grad()
def first_refused(named: Iterable[tuple[torch.Tensor, str]]) -> str | None:
    """What is wrong with the first gradient that has a number beyond float32; None: nothing is."""
    for parameter, name in named:
        gradient = parameter.grad
        if gradient is None:
            continue
        values = gradient._values() if gradient.is_sparse else gradient
        # One pass without memory of its own. The comparison is false for NaN.
        if values.numel() == 0 or float(torch.linalg.vector_norm(values, torch.inf)) <= _LARGEST:
            continue
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        index = tuple((~(dense.abs() <= _LARGEST)).nonzero()[0].tolist())
        return f"the gradient of '{name}' is {float(dense[index])} at index {index}"
    return None
