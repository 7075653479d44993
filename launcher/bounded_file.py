"""Reads the files that flags name, without waiting for one that has no end or no writer."""

from __future__ import annotations

import os
import re
import stat

from mydist.launcher.errors import UsageError

# What a shell has opened for us, as `--hostfile <(program)` does, is read whatever it is.
_DESCRIPTOR = re.compile(r"/dev/stdin|(/dev|/proc/self)/fd/[0-9]+")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def irregular_kind(mode: int) -> str:
    """What a file is that is no regular one, for messages; empty for a regular file."""
    return _KINDS.get(stat.S_IFMT(mode), "")


def read_bounded(path: str, flag: str, max_bytes: int) -> bytes:
    """The content of a regular file, or of a descriptor that this process has.

    Raises UsageError, also when it is larger than `max_bytes`.
    """
    try:
        is_ours = _DESCRIPTOR.fullmatch(path) is not None
        kind = "" if is_ours else irregular_kind(os.stat(path).st_mode)
        if kind:
            raise UsageError(f"{flag} {path!r}: got {kind}, expected a regular file")
        # Should it become a pipe in between: opening one waits for a writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | (0 if is_ours else os.O_NONBLOCK)
        with open(os.open(path, flags), "rb") as file:
            # None: the file has nothing yet, and more may come, as the kernel's log has it.
            content = file.read(max_bytes + 1) or b""
    except (OSError, ValueError) as error:  # ValueError: the path has a null byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{flag} {path!r}: cannot read it: {reason}") from None
    if len(content) > max_bytes:
        raise UsageError(f"{flag} {path!r}: larger than {max_bytes} bytes, which is the limit")
    return content
