"""The exceptions of mydist.

Wrong arguments are ValueError or TypeError, raised before any communication. Everything else that
fails is a MydistError, raised on every surviving rank; its text names the tensor, the operation and
the ranks, what was expected and what to do.
"""

from __future__ import annotations

import torch  # noqa: F401  (the extension needs torch's libraries to be loaded)

from ._C import (
    AbortedError,
    CollectiveTimeoutError,
    MismatchError,
    MydistError,
    PeerLostError,
    VersionMismatchError,
)

__all__ = [
    "AbortedError",
    "CollectiveTimeoutError",
    "HorovodInternalError",
    "MismatchError",
    "MydistError",
    "PeerLostError",
    "VersionMismatchError",
]

# So that `except hvd.exceptions.HorovodInternalError` of a migrating script keeps its meaning.
HorovodInternalError = MydistError
