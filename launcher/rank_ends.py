"""Tells the children on this host how others have ended, in a file in memory that they inherit.

A parent learns by which signal a process ended, and before Linux 6.15 no other process does. The
other ranks see the end, and name the signal in their errors: see csrc/world/rank_ends.h. Two bytes
for each child (children.py): what it is, and the number of the signal or the exit code.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

VARIABLE = "MYDIST_JOB_ENDS_FD"
_MAX_RANKS = 1 << 16
_EXITED = 1
_SIGNALLED = 2
_F_ADD_SEALS = 1033
_NO_MORE_WRITERS = 0x2 | 0x4 | 0x10  # F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE


class RankEnds:
    """The file. Only this object can write it. `fd` is inherited; close() ends it here."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.fd = os.memfd_create("mydist-rank-ends", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, 2 * _MAX_RANKS)
        self._entries = mmap.mmap(self.fd, 2 * _MAX_RANKS)
        with contextlib.suppress(OSError):  # Linux before 5.1 lets the ranks write, too.
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _NO_MORE_WRITERS)

    def tell(self, child: int, status: int) -> None:
        """`status` is the exit code, or -N when signal N ended the child."""
        if 0 <= child < _MAX_RANKS and self.fd >= 0:
            entry = bytes([_SIGNALLED, -status & 0xFF] if status < 0 else [_EXITED, status & 0xFF])
            self._entries[2 * child : 2 * child + 2] = entry

    def close(self) -> None:
        """Idempotent."""
        if self.fd >= 0:
            self._entries.close()
            os.close(self.fd)
            self.fd = -1
