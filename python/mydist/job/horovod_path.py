"""How the ranks of a job find mydist.horovod as `horovod`, and what Horovod tells of a rank.

The launcher uses this module too, so it imports only the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["OF_A_RANK", "PATH", "import_path"]

# `import horovod` finds the package here.
PATH = Path(__file__).parents[1] / "horovod" / "path"

# HOROVOD_RANK and the like, without the first part.
OF_A_RANK = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


def import_path(environment: Mapping[str, str]) -> str:
    """The PYTHONPATH of the environment with PATH in front.

    Raises ValueError where the path of the installation cannot stand in PYTHONPATH.
    """
    if os.pathsep in str(PATH):
        raise ValueError(f"{PATH} has a {os.pathsep!r} in it, so PYTHONPATH cannot name it")
    before = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([str(PATH), *(part for part in before if part != str(PATH))])
