"""Where pip puts the NCCL of the nvidia-nccl packages.

The launcher uses this module too, so it imports only the standard library.
"""

from __future__ import annotations

import os
import sys

__all__ = ["nccl_folders"]


def nccl_folders() -> list[str]:
    """The folders that exist, in the order of sys.path."""
    folders = (os.path.join(path, "nvidia", "nccl", "lib") for path in sys.path)
    return [folder for folder in folders if os.path.isdir(folder)]
