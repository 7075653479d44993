"""The variables of Horovod: what the ranks read of them, and what they find in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping

from ..errors import MydistError
from ..job.horovod_path import OF_A_RANK, import_path

__all__ = ["adopt_launched", "adopt_settings", "with_import_path"]


def _same(text: str) -> str:
    return text


def _mebibytes(text: str) -> str:
    return f"{int(text) / (1 << 20):.17g}"


def _file(text: str) -> str:
    # Then start_timeline() names the file.
    return "" if text.upper() == "DYNAMIC" else text


def _zero_if_on(text: str) -> str:
    return "" if text in ("", "0") else "0"


def _controller(text: str) -> str:
    return text.lower() if text.lower() in ("gloo", "mpi") else ""


def _level(text: str) -> str:
    return {"fatal": "error"}.get(text.lower(), text.lower())


# Horovod's variable, ours, and how to get the value; "" leaves ours alone. The first one counts.
_SETTINGS: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("HOROVOD_FUSION_THRESHOLD", "MYDIST_FUSION_THRESHOLD_MB", _mebibytes),
    ("HOROVOD_CACHE_CAPACITY", "MYDIST_CACHE_CAPACITY", _same),
    ("HOROVOD_TIMELINE", "MYDIST_TIMELINE", _file),
    ("HOROVOD_TIMELINE_MARK_CYCLES", "MYDIST_TIMELINE_MARK_CYCLES", _same),
    ("HOROVOD_STALL_CHECK_DISABLE", "MYDIST_STALL_WARNING_SECONDS", _zero_if_on),
    ("HOROVOD_STALL_CHECK_TIME_SECONDS", "MYDIST_STALL_WARNING_SECONDS", _same),
    ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "MYDIST_STALL_SHUTDOWN_SECONDS", _same),
    ("HOROVOD_CONTROLLER", "MYDIST_CONTROLLER", _controller),
    ("HOROVOD_CPU_OPERATIONS", "MYDIST_CONTROLLER", _controller),
    ("HOROVOD_GLOO_IFACE", "MYDIST_NETWORK_INTERFACES", _same),
    ("HOROVOD_GLOO_TIMEOUT_SECONDS", "MYDIST_TIMEOUT_SECONDS", _same),
    ("HOROVOD_HIERARCHICAL_ALLREDUCE", "MYDIST_HIERARCHICAL_ALLREDUCE", _same),
    ("HOROVOD_LOG_LEVEL", "MYDIST_LOG_LEVEL", _level),
)


def settings(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What Horovod's variables set that ours do not set already: our names and values.

    Raises ValueError, which names the variable, for what is no number.
    """
    seen = set(environment)
    for theirs, ours, convert in _SETTINGS:
        if theirs not in environment or ours in seen:
            continue
        try:
            value = convert(environment[theirs])
        except ValueError:
            text = f"{theirs} is {environment[theirs]!r}, expected a whole number of bytes"
            raise ValueError(text) from None
        if value:
            seen.add(ours)
            yield ours, value


def adopt_settings(environment: MutableMapping[str, str] = os.environ) -> None:
    """Puts what Horovod's variables say into ours. Called by init(), before they are read."""
    environment.update(dict(settings(environment)))


def adopt_launched(environment: MutableMapping[str, str] = os.environ) -> None:
    """Programs find rank and size in HOROVOD_RANK and the like, where mydistrun sets ours."""
    for name in OF_A_RANK:
        if f"MYDIST_{name}" in environment:
            environment[f"HOROVOD_{name}"] = environment[f"MYDIST_{name}"]


def with_import_path(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy in which Python, and what it starts, finds this package as `horovod`.

    Raises MydistError where the path of the installation cannot stand in PYTHONPATH.
    """
    try:
        return {**environment, "PYTHONPATH": import_path(environment)}
    except ValueError as error:
        raise MydistError(str(error)) from None
