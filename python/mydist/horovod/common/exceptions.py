"""The exceptions of `horovod.common.exceptions`."""

from __future__ import annotations

from ...errors import HorovodInternalError

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed."""

    def __init__(self, skip_sync: bool) -> None:
        """`skip_sync`: whether the state needs no synchronization."""
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


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
