"""InnerState: the momenta that the wrapped optimizer keeps for its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


class InnerState:
    """Tensors of an optimizer's state that have the shape of their parameter; no integers."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
    ) -> None:
        self._state = optimizer.state
        self._parameters = parameters

    def reset(self) -> None:
        """Makes all of them zero."""
        for _, tensor in self._entries():
            if tensor is not None:
                tensor.zero_()

    def kinds(self) -> int:
        """How many there are of each parameter; 0 on a rank that has had no gradient yet."""
        return len(self._keys())

    def read(self, kinds: int) -> list[torch.Tensor]:
        """Copies of them; zeros where a parameter has had no gradient on this rank.

        kinds: the most of any rank, so that a rank without gradients gives as many tensors.
        """
        lacking = kinds - self.kinds()
        return [
            torch.zeros_like(parameter) if tensor is None else tensor.detach().clone()
            for parameter, tensor in self._entries()
        ] + [torch.zeros_like(p) for _ in range(lacking) for p in self._parameters]

    def write(self, values: Sequence[torch.Tensor]) -> None:
        """Overwrites those that exist with what became of the tensors that `read` gave."""
        with torch.no_grad():
            # This rank may have fewer: those that `read` has made up are at the end.
            for (_, tensor), value in zip(self._entries(), values, strict=False):
                if tensor is not None:
                    tensor.copy_(value)

    def _entries(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Each parameter with each of its tensors, in the same order on all ranks."""
        for key in self._keys():
            for parameter in self._parameters:
                value = self._state.get(parameter, {}).get(key)
                yield parameter, value if _is_momentum(key, value, parameter) else None

    def _keys(self) -> list[str]:
        return sorted(
            {
                key
                for parameter in self._parameters
                for key, value in self._state.get(parameter, {}).items()
                if _is_momentum(key, value, parameter)
            }
        )


def _is_momentum(key: str, value: object, parameter: torch.Tensor) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and (value.is_floating_point() or value.is_complex())
        and value.shape == parameter.shape
        and key != "step"  # The count of steps has the shape of a scalar parameter.
    )
