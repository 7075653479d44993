"""Pickling of what goes to other processes: by pickle, and by cloudpickle what pickle refuses."""

from __future__ import annotations

import pickle
from typing import Any


def dumps(value: Any, by_value: bool = False) -> bytes:
    """The pickled value, for pickle.loads().

    Classes and functions at the top of a module travel by name, so that the receiver uses its own.
    Lambdas, closures and local classes have no such name and travel whole. Raises what pickling
    raises: it runs code of the value.

    Args:
        by_value: also send whole what `__main__` defines, for a receiver whose `__main__` lacks it.
    """
    first, second = (_whole, _by_name) if by_value else (_by_name, _whole)
    try:
        return first(value)
    except Exception:  # Whatever code of the value raises.
        return second(value)


def _by_name(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _whole(value: Any) -> bytes:
    # Here, because most programs do without it.
    import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return bytes(cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
