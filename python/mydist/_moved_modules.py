"""The public module paths whose modules lie elsewhere now; they stay valid.

`import mydist.loader` gives the very module that MOVED names, so classes and functions are the same
by both paths, and a pickle that names the earlier path loads.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["MOVED", "MovedModules"]

# Path that was given to users -> path of the module.
MOVED = {
    "mydist.checkpoint": "mydist.training.checkpoint",
    "mydist.compression": "mydist.collectives.compression",
    "mydist.consistency": "mydist.optim.consistency",
    "mydist.learning_rate": "mydist.optim.learning_rate",
    "mydist.loader": "mydist.training.loader",
    "mydist.main_rank": "mydist.training.main_rank",
    "mydist.metrics": "mydist.training.metrics",
    "mydist.objects": "mydist.collectives.objects",
    "mydist.optimizer": "mydist.optim.optimizer",
    "mydist.process_set": "mydist.collectives.sets",
    "mydist.progress_bar": "mydist.training.progress_bar",
    "mydist.rank_logger": "mydist.training.rank_logger",
    "mydist.sampler": "mydist.training.sampler",
    "mydist.seed": "mydist.training.seed",
    "mydist.state": "mydist.optim.state",
    "mydist.sync_batch_norm": "mydist.training.sync_batch_norm",
}


class MovedModules(MetaPathFinder, Loader):
    """Finds the modules of a table by their earlier paths; belongs first in sys.meta_path, so
    that no file left behind by an earlier version is found instead."""

    def __init__(self, moved: Mapping[str, str]) -> None:
        self._moved = moved

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for the paths of the table, None for all others."""
        return ModuleSpec(fullname, self) if fullname in self._moved else None

    def exec_module(self, module: ModuleType) -> None:
        """Puts the real module in the place of the empty one that was made for the path."""
        path = module.__name__
        sys.modules[path] = importlib.import_module(self._moved[path])
