"""Public module paths that were given to users go on working after their modules have moved."""

from __future__ import annotations

import importlib
import pickle
import sys

import pytest

from mydist import errors
from mydist._moved_modules import MovedModules


@pytest.fixture
def moved_path(monkeypatch: pytest.MonkeyPatch) -> str:
    """An earlier path of mydist.errors."""
    path = "mydist.earlier_errors"
    monkeypatch.setattr(sys, "meta_path", [MovedModules({path: "mydist.errors"}), *sys.meta_path])
    monkeypatch.delitem(sys.modules, path, raising=False)
    return path


def test_an_earlier_path_gives_the_very_module(moved_path: str) -> None:
    assert importlib.import_module(moved_path) is errors
    assert errors.__name__ == "mydist.errors"
    assert errors.__spec__ is not None and errors.__spec__.name == "mydist.errors"


def test_a_pickle_that_names_an_earlier_path_loads(moved_path: str) -> None:
    assert pickle.loads(f"c{moved_path}\nMydistError\n.".encode()) is errors.MydistError


def test_other_paths_are_not_found(moved_path: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"mydist\.no_such_module"):
        importlib.import_module("mydist.no_such_module")
