"""A build without the parameter server, as `make demo` makes it."""

from __future__ import annotations

import sys

import pytest

import mydist as md
from mydist.ps import binding


def test_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mydist._ps", None)  # What Python takes for missing.
    monkeypatch.delattr(md, "_ps", raising=False)
    with pytest.raises(md.MydistError, match=r"In a checkout `make build` adds it"):
        binding.load()
