"""The error of what elastic jobs of mydist do not have."""

from __future__ import annotations


def unavailable(name: str) -> NotImplementedError:
    """What using the name is."""
    return NotImplementedError(
        f"hvd.elastic.state.{name} is not there: give TorchState a value with state_dict() and "
        "load_state_dict() instead"
    )
