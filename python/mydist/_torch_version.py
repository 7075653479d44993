"""The compiled binding fits the torch that it was compiled with, up to the minor version.

Another one has tensors of another layout: the binding would load, and write beside them.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__ = ["CheckedBinding", "built_for", "present", "refusal"]

_FILE = Path(__file__).with_name("torch_version.txt")


def built_for() -> str:
    """The version of torch that the binding was compiled with; empty when it is not known."""
    return _FILE.read_text(encoding="utf-8").strip() if _FILE.exists() else ""


def present() -> str:
    """The version of the torch of this Python; empty when it has none."""
    if torch := sys.modules.get("torch"):
        return str(torch.__version__)
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def refusal(built: str, found: str) -> str:
    """Why a binding for one version does not fit another; empty when it does or may."""
    if not built or not found or _minor(built) == _minor(found):
        return ""
    return (
        f"mydist was compiled for torch {built}, and this Python has torch {found}. Compile mydist "
        "for this torch: `make build` in its source tree, or `pip install --no-build-isolation "
        f"--force-reinstall --no-deps .` there"
    )


def _minor(version: str) -> str:
    return version.partition("+")[0].rpartition(".")[0]


class CheckedBinding(MetaPathFinder):
    """Asked before Python's finders; raises ImportError for a binding that does not fit."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None: Python finds the module as ever."""
        if fullname == self._module and (why := refusal(built_for(), present())):
            raise ImportError(why, name=fullname)
        return None
