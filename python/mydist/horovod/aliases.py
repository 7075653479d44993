"""`horovod` and what is below it as names of the same modules of this package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = ["install"]

_NAME = "horovod"
_TARGET = "mydist.horovod"


class _Alias(Loader):
    """Gives the module of another name. It stays as it is: one module, two names."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's there.
        module.__spec__ = self._own_spec


class _Finder(MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_NAME}."):
            return None
        name = _TARGET + fullname[len(_NAME) :]
        if find_spec(name) is None:
            return None
        return ModuleSpec(fullname, _Alias(name))


def install() -> None:
    """From now on `import horovod` and imports below it give the modules of this package."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    sys.modules[_NAME] = importlib.import_module(_TARGET)
