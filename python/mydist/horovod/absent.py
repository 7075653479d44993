"""The parts of Horovod that are not for PyTorch, or not here: what to do instead."""

from __future__ import annotations


def missing(name: str, alternative: str) -> ImportError:
    """The error of `import horovod.NAME`."""
    return ImportError(f"horovod.{name} is not in mydist, which is for PyTorch: {alternative}")
