"""Parameters that an ordinary run leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def deep(*values: Any) -> Any:
    """The values of one case that only `make deep` runs, and now and then a slice."""
    return pytest.param(*values, marks=pytest.mark.deep)
