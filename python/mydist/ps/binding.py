"""The compiled part of the parameter server, or the reason why there is none."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ..errors import MydistError


def load() -> ModuleType:
    """The module mydist._ps. Raises MydistError where it was not built or cannot be loaded."""
    try:
        # Not "from .. import _ps", which takes one that is missing for a name that is missing.
        return import_module("mydist._ps")
    except ModuleNotFoundError:
        raise MydistError(
            "this mydist was built without the parameter server; `mydistrun --check-build` says "
            "why. In a checkout `make build` adds it. It needs standalone Asio and OpenSSL's "
            "libcrypto when it is built (Debian: apt-get install libasio-dev libssl-dev)"
        ) from None
    except ImportError as error:
        raise MydistError(
            f"the parameter server cannot be loaded: {error}. Install mydist again"
        ) from None
