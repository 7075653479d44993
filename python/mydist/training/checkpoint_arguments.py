"""What Checkpoint checks about its arguments, before any communication."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def checked_path(argument: str, value: object) -> str:
    if not isinstance(value, (str, os.PathLike)) or isinstance(value, bytes):
        raise TypeError(
            f"Checkpoint: {argument} is {value!r} ({type(value).__name__}), expected a str or path"
        )
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(f"Checkpoint: {argument} is {path!r}, expected the path of a folder")
    return path


def checked_keep(keep: object) -> int | None:
    if keep is None:
        return None
    if isinstance(keep, bool) or not isinstance(keep, int):
        raise TypeError(f"Checkpoint: keep is {keep!r}, expected an int or None to keep all")
    if keep < 1:
        raise ValueError(f"Checkpoint: keep is {keep}, expected at least 1, or None to keep all")
    return keep


def checked_step(step: object) -> int:
    if isinstance(step, bool) or not isinstance(step, int):
        raise TypeError(f"Checkpoint: step is {step!r} ({type(step).__name__}), expected an int")
    if not 0 <= step < 2**63:
        raise ValueError(f"Checkpoint: step is {step}, expected the number of steps made so far")
    return step


def checked_objects(objects: Mapping[str, Any]) -> dict[str, Any]:
    if not objects:
        raise ValueError(
            "Checkpoint: got nothing to save; pass model=…, optimizer=… or other objects with "
            "state_dict() by name"
        )
    for name, value in objects.items():
        for method in ("state_dict", "load_state_dict"):
            if isinstance(value, type) or not callable(getattr(value, method, None)):
                raise TypeError(
                    f"Checkpoint: {name} is {type(value).__name__}, which has no {method}(); "
                    "save plain values with save(step, extras={…})"
                )
    return dict(objects)
