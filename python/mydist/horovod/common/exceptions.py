"""The exceptions of `horovod.common.exceptions`."""

from __future__ import annotations

from ...elastic import HostsUpdatedInterrupt
from ...errors import HorovodInternalError

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """What to say of a framework of another version than the one compiled for."""
    return (
        f"{name} is version {version}, and mydist was compiled for version {installed_version}. "
        "Build mydist again for the version that is there"
    )


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one compiled for."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        """The framework, the version that is there, and the one compiled for."""
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version
