"""Which checkpoint is restored. Rank 0 alone calls this; nothing here communicates."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MydistError
from .checkpoint_file import read_checkpoint, saved_checkpoints

AUTO = "auto"


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint that was read and checked."""

    path: Path
    data: bytes
    content: dict[str, Any]


def find_checkpoint(folder: Path, resume: str | os.PathLike[str]) -> FoundCheckpoint | None:
    """The checkpoint to load; None when there is none. `resume` is as for Checkpoint.restore.

    Raises:
        FileNotFoundError, ValueError: the file or folder named is not there or not usable.
        MydistError: a folder has only checkpoints that cannot be read.
    """
    if resume == AUTO:
        return _newest(folder)
    path = Path(resume).absolute()
    if path.is_dir():
        found = _newest(path)
        if found is None:
            raise FileNotFoundError(f"resume='{path}': the folder has no checkpoint")
        return found
    try:
        data, content = read_checkpoint(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"resume='{path}': there is no such file; pass resume='auto' for the newest one "
            "of the folder, or None to start from scratch"
        ) from None
    except ValueError as error:
        raise ValueError(f"resume='{path}': {error}") from None
    return FoundCheckpoint(path, data, content)


def _newest(folder: Path) -> FoundCheckpoint | None:
    """The newest checkpoint that is whole. Raises MydistError when there are only others."""
    problems = []
    for _, path in reversed(saved_checkpoints(folder)):
        try:
            data, content = read_checkpoint(path)
        except (OSError, ValueError) as error:
            problems.append(f"'{path}': {error}")
            warnings.warn(f"checkpoint '{path}' is skipped: {error}", stacklevel=5)
            continue
        return FoundCheckpoint(path, data, content)
    if problems:
        raise MydistError(
            f"no checkpoint in '{folder}' can be restored: {'; '.join(problems)}. Move them away "
            "to start from scratch"
        )
    return None
