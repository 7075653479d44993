"""The files that ranks write of what each of them has a slice of; nothing here communicates.

A checkpoint with slices is a folder of one file a rank, `step-000001000.shards.1f3a77c2/rank-3.pt`,
and the checkpoint itself, which names that folder. The checkpoint is written last: until then the
one before counts, and a folder that no checkpoint names is removed by the next save.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch

_FOLDER = re.compile(r"(step-\d{9,})\.shards\.[0-9a-f]{8}")


def shard_folder(checkpoint: Path, token: str) -> Path:
    """Where the files of one save lie; `token` has eight hexadecimal digits."""
    return checkpoint.with_name(f"{checkpoint.stem}.shards.{token}")


def shard_file(folder: Path, rank: int) -> Path:
    """That of one rank of the job that saved."""
    return folder / f"rank-{rank}.pt"


def write_shard(folder: Path, rank: int, content: dict[str, Any]) -> None:
    """Writes the file of this rank; it is on the disk then. Raises OSError, naming the file."""
    path = shard_file(folder, rank)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(
            error.errno,
            f"the slices of rank {rank} could not be written to '{path}': "
            f"{error.strerror or error}. Checkpoints saved before are untouched; make room or "
            "choose a folder that all ranks can write to, then save again",
        ) from error


def expect_whole(folder: Path, rank: int) -> None:
    """Raises ValueError when the file of this rank of the saving job is damaged or not there."""
    path = shard_file(folder, rank)
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except FileNotFoundError:
        raise ValueError(
            f"'{path}' is missing. Every rank must see the folder to which all ranks have saved; "
            "copy it together with the checkpoint"
        ) from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ValueError(f"'{path}' is cut off or damaged ({error})") from None
    if damaged is not None:
        raise ValueError(f"'{path}' is damaged (the CRC-32 of its part '{damaged}' is wrong)")


def read_shards(folder: Path, size: int) -> list[dict[str, Any]]:
    """What all ranks of the saving job wrote. Tensors are mapped: they are read when used."""
    return [
        torch.load(shard_file(folder, rank), map_location="cpu", weights_only=True, mmap=True)
        for rank in range(size)
    ]


def remove_unused_shards(checkpoint: Path, used: Path) -> None:
    """Removes folders of checkpoints that are no more, and of earlier saves of this one."""
    for path in checkpoint.parent.iterdir():
        match = _FOLDER.fullmatch(path.name)
        if match is None or path == used:
            continue
        owner = path.with_name(f"{match[1]}.pt")
        if owner == checkpoint or not owner.exists():
            shutil.rmtree(path, ignore_errors=True)
