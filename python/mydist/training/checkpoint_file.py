"""The files in a checkpoint folder. Rank 0 alone calls this; nothing here communicates.

A checkpoint is an ordinary file of torch.save, `step-000001000.pt`. It is written under another
name, forced to disk and then renamed, so a kill or a full disk at any moment leaves whole files.
Files are read with `weights_only=True`, so one that was tampered with cannot run code, and their
CRC-32 sums are checked, which torch.load leaves out.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch

from ..errors import MydistError

FORMAT = "mydist.checkpoint"
VERSION = 1
AUTO = "auto"  # The newest checkpoint of a folder.
_FILE = re.compile(r"step-(\d{9,})\.pt")
_UNFINISHED = re.compile(r"\.step-\d{9,}\.pt\.[0-9a-f]{16}\.tmp")
# What `torch.load(weights_only=True)` gives back without being told more.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype)
_CONTAINERS = (list, tuple, set, torch.Size)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step-{step:09d}.pt"


def saved_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Steps and files, ascending; nothing when there is no folder."""
    if not folder.is_dir():
        return []
    found = ((_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Writes the file so that it is there as a whole or not at all. Makes its folder.

    Raises:
        OSError: it could not be written; naming the file, other files are untouched.
        TypeError: `content` holds a value that could not be loaded again.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(path.parent)
        _write(unfinished, content)
        _expect_loadable(unfinished, content)
        os.replace(unfinished, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise OSError(
            error.errno,
            f"checkpoint '{path}' could not be written: {error.strerror or error}. Checkpoints "
            "saved before are untouched; make room or choose another folder, then save again",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def remove_old_checkpoints(folder: Path, step: int, keep: int) -> None:
    """Removes all but the newest `keep` of the checkpoints up to `step`."""
    upto = [path for saved, path in saved_checkpoints(folder) if saved <= step]
    for path in upto[:-keep]:
        path.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a file and what they mean.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, holds something else than plain values, or is no checkpoint.
    """
    data = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ValueError(f"it is cut off or damaged ({error})") from None
    if damaged is not None:
        raise ValueError(f"it is damaged (the CRC-32 of its part '{damaged}' is wrong)")
    return data, load_checkpoint(data)


def load_checkpoint(data: bytes) -> dict[str, Any]:
    """What the bytes of a checkpoint mean, tensors on the CPU. Raises ValueError."""
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the bytes made torch.load stumble over
        raise ValueError(f"it cannot be loaded with weights_only=True ({_reason(error)})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("it was not written by mydist.Checkpoint")
    if content["version"] != VERSION:
        raise ValueError(
            f"its format version is {content['version']}, expected {VERSION}; use the mydist that "
            "wrote it"
        )
    return content


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint that was read and checked."""

    path: Path
    data: bytes
    content: dict[str, Any]


def shared_content(found: FoundCheckpoint) -> dict[str, Any]:
    """What all ranks need of it: without the states of each rank, but with their number."""
    shared = {key: value for key, value in found.content.items() if key != "rank_states"}
    shared["rank_state_count"] = len(found.content.get("rank_states", []))
    return shared


def shared_bytes(found: FoundCheckpoint) -> bytes:
    """The same as a file; the file that was found, where no rank has a state of its own."""
    shared = shared_content(found)
    if not shared["rank_state_count"]:
        return found.data
    stream = io.BytesIO()
    torch.save(shared, stream)
    return stream.getvalue()


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


class _Recorder(io.RawIOBase):
    """A file that remembers its first error: torch.save replaces it by one of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = 0
        try:
            while written < len(view):
                written += os.write(self._descriptor, view[written:])
        except OSError as error:
            self.error = self.error or error
            raise
        return written


def _write(path: Path, content: Mapping[str, Any]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)  # less the user's umask
    recorder = _Recorder(descriptor)
    try:
        with _checksums():
            torch.save(dict(content), cast(IO[bytes], recorder))
        os.fsync(descriptor)
    except Exception:
        if recorder.error is not None:
            raise recorder.error from None
        raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _checksums() -> Iterator[None]:
    """torch.save writes CRC-32 sums by default, but a script may have switched that off."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _expect_loadable(path: Path, content: Mapping[str, Any]) -> None:
    """Loads the structure of the file; the tensors in it are mapped, not read."""
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        where = next(_strange_values(content, ""), "")
        raise TypeError(
            f"checkpoint: {where or 'a value'} cannot be loaded with weights_only=True "
            f"({_reason(error)}); state may hold numbers, strings, None, tensors, and lists, "
            "tuples and dicts of them"
        ) from None


def _strange_values(value: Any, where: str) -> Iterator[str]:
    """Places and types of the values that are not plain."""
    if isinstance(value, Mapping) and type(value) in (dict, OrderedDict):
        for key, item in value.items():
            yield from _strange_values(item, f"{where}.{key}" if where else str(key))
    elif type(value) in _CONTAINERS:
        for index, item in enumerate(value):
            yield from _strange_values(item, f"{where}[{index}]")
    elif type(value) not in _PLAIN and not isinstance(value, torch.Tensor):
        yield f"{where} (a {type(value).__module__}.{type(value).__qualname__})"


def _remove_unfinished(folder: Path) -> None:
    """What a killed job left; a folder belongs to one job at a time."""
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Makes the rename survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    """What torch.load stumbled over, without its advice to trust the file instead."""
    refused = re.search(r"GLOBAL (\S+)", str(error))
    if refused:
        return f"it refers to {refused[1]}, which is not allowed"
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
