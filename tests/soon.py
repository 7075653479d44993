"""How soon an error comes, in tests.

docs/reliability.md has the bounds of the product, of one second and less. A machine that runs tests
may be busy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

SOON_S = 3.0


@contextmanager
def soon() -> Iterator[None]:
    """What is done within takes no longer, also where it ends with an error."""
    began = time.monotonic()
    try:
        yield
    finally:
        took = time.monotonic() - began
        assert took < SOON_S, f"it took {took:.1f} s, expected less than {SOON_S:g} s"
