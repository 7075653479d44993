"""Pickling of what goes to other processes: by pickle, and by cloudpickle what pickle refuses.

A function of `__main__` travels whole: ranks may define different ones under one name, and the
sender's is meant. A class of `__main__` travels by name where the receiver has it, so that
isinstance() and == hold for its objects there.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
import types
from io import BytesIO
from typing import Any


def dumps(value: Any, by_value: bool = False) -> bytes:
    """The pickled value, for pickle.loads().

    Functions of `__main__`, lambdas, closures and local classes travel whole. What else is at the
    top of a module travels by name, so that the receiver uses its own. Raises what pickling raises:
    it runs code of the value. With `by_value` classes of `__main__` travel whole, too, for a
    receiver whose `__main__` lacks them.
    """
    ways = (_whole, _by_name) if by_value else (_without_functions, _functions_whole)
    try:
        return ways[0](value)
    except Exception:  # Whatever code of the value raises.
        pass
    try:
        return ways[1](value)
    except Exception:
        if by_value:
            raise
        with contextlib.suppress(Exception):
            return _by_name(value)  # A function that uses what cannot be pickled.
        raise


def _by_name(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


class _HasFunction(Exception):
    """The value contains a function of `__main__`."""


class _Pickler(pickle.Pickler):
    """pickle's own, for values without functions of `__main__`."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType) and obj.__module__ == "__main__":
            raise _HasFunction
        return NotImplemented


def _without_functions(value: Any) -> bytes:
    return _dumps_with(_Pickler, value)


def _functions_whole(value: Any) -> bytes:
    return _dumps_with(_cloud_pickler(), value)


def _whole(value: Any) -> bytes:
    return bytes(_cloudpickle().dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def _dumps_with(pickler: Any, value: Any) -> bytes:
    file = BytesIO()
    pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _cloudpickle() -> Any:
    # Here, because most programs do without it.
    import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return cloudpickle


@functools.cache
def _cloud_pickler() -> Any:
    base: Any = _cloudpickle().Pickler

    class Pickler(base):  # type: ignore[misc]
        """cloudpickle's, but classes at the top of `__main__` travel by name."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and _is_at_top_of_main(obj):
                return NotImplemented
            return super().reducer_override(obj)

    return Pickler


def _is_at_top_of_main(cls: type) -> bool:
    main = sys.modules.get("__main__")
    return cls.__module__ == "__main__" and getattr(main, cls.__qualname__, None) is cls
