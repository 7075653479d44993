"""Reads the files that flags name, without waiting for the end of one that has none."""

from __future__ import annotations

from mydist.launcher.errors import UsageError


def read_bounded(path: str, flag: str, max_bytes: int) -> bytes:
    """The content of a file or pipe. Raises UsageError, also when it is larger than `max_bytes`."""
    try:
        with open(path, "rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: the path has a null byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{flag} {path!r}: cannot read it: {reason}") from None
    if len(content) > max_bytes:
        raise UsageError(f"{flag} {path!r}: larger than {max_bytes} bytes, which is the limit")
    return content
