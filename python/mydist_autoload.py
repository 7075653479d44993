"""torch finds the backend "mydist" by its name: the entry point that `import torch` runs.

This file is no part of the package mydist: `import torch` takes a fraction of a millisecond longer,
and does not fail when mydist is broken. torch 2.14 and later look names up themselves, in the group
"torch.distributed.backends".
"""

from __future__ import annotations

import contextlib
from typing import Any

NAME = "mydist"


def watch_names() -> None:
    """Has torch.distributed ask mydist when a program first names the backend. Never raises."""
    with contextlib.suppress(Exception):
        from torch.distributed import Backend

        if not hasattr(Backend, "_ensure_backend_registered"):  # torch before 2.14
            _register_when_named(Backend)


# A registered backend would change programs that do not use it: torch before 2.14 then calls the
# groups of "cpu:gloo" undefined. So the name is registered by the first use, which reads it here.
def _register_when_named(names: Any) -> None:
    plain = names.__new__

    def read(cls: Any, name: Any) -> Any:
        if isinstance(name, str) and NAME in name.lower() and names.__new__ is read:
            names.__new__ = staticmethod(plain)
            if NAME.upper() not in names._plugins:
                names.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
                _register_rendezvous()
        return plain(cls, name)

    names.__new__ = staticmethod(read)


def _register_rendezvous() -> None:
    from torch.distributed.rendezvous import register_rendezvous_handler

    with contextlib.suppress(RuntimeError):  # It is known.
        register_rendezvous_handler(NAME, _meet)  # type: ignore[no-untyped-call]


def _meet(url: str, **arguments: Any) -> Any:
    from mydist.job.torch_store import meet

    return meet(url, **arguments)


def _create(options: Any, backend_options: Any) -> Any:
    from mydist.c10d import create

    return create(options, backend_options)
