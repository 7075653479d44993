"""form_of: the other forms of a collective take the arguments of its blocking one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from .call import Call

_Parameters = ParamSpec("_Parameters")
_Answer = TypeVar("_Answer")

# What some calls take besides tensors, a name, a process set, and how they reduce.
_OPTIONS = ("compression", "splits", "root_rank")


def form_of(
    blocking: Callable[_Parameters, object],
) -> Callable[[Callable[[Call], _Answer]], Callable[_Parameters, _Answer]]:
    """Makes a function with the parameters of `blocking` of what is done with its checked call.

    It is compiled from their names, as dataclasses compile their methods: so Python itself checks
    the arguments, and a call takes as long as one of a function that is written out.
    """
    taken = inspect.signature(blocking).parameters
    known: Any = blocking

    def make(finish: Callable[[Call], _Answer]) -> Callable[_Parameters, _Answer]:
        average = "average" if "average" in taken else None
        scaling = f"({average}, op, prescale_factor, postscale_factor)" if "op" in taken else None
        options = "".join(f", {name}={name}" for name in _OPTIONS if name in taken)
        defaults = {name: p.default for name, p in taken.items() if p.default is not p.empty}
        parameters = ", ".join(f"{p}=_defaults[{p!r}]" if p in defaults else p for p in taken)
        arguments = f"{next(iter(taken))}, name, process_set, {scaling}{options}"
        function = finish.__name__
        names = {**known.__globals__, "_finish": finish, "_defaults": defaults, "_Call": Call}
        body = f"return _finish(_Call({function!r}, {arguments}))"
        exec(f"def {function}({parameters}): {body}", names)
        form: Any = names[function]
        form.__module__, form.__doc__ = finish.__module__, finish.__doc__
        form.__annotations__ = {**known.__annotations__, **finish.__annotations__}
        del form.__annotations__["call"]
        return form  # type: ignore[no-any-return]

    return make
