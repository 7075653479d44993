"""`horovod.run`: calls a function on several ranks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..job import run as own_run
from .aliases import install
from .environment import with_import_path

__all__ = ["run"]


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Returns `func(*args, **kwargs)` of every rank, in rank order, as mydist.run does.

    Older names of arguments warn. Raises ValueError for arguments that contradict each other and
    for another Python, and NotImplementedError for one for elastic jobs; others as mydist.run.
    """
    _warn_of_older({"np": np, "min_np": min_np, "max_np": max_np}, network_interface)
    _refuse_elastic(
        min_num_proc=min_np if min_np is not None else min_num_proc,
        max_num_proc=max_np if max_np is not None else max_num_proc,
        slots=slots,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        host_discovery_script=host_discovery_script,
    )
    _refuse_contradictions(hosts, hostfile, use_gloo, use_mpi)
    if executable is not None and not _is_this_python(executable):
        raise ValueError(
            f"run: executable is {executable!r}; ranks run {sys.executable}, so leave it out"
        )
    flags = _flags(
        hostfile=hostfile,
        start_timeout=start_timeout,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        cache_capacity=0 if disable_cache else None,
        output_filename=output_filename,
        mpi_args=mpi_args,
        network_interfaces=network_interface or ",".join(network_interfaces or ()) or None,
    )
    return own_run.run(
        _InRank(func),
        args,
        kwargs,
        num_proc if np is None else np,
        hosts,
        backend="gloo" if use_gloo else "mpi" if use_mpi else None,
        env={"PYTHONPATH": with_import_path(os.environ)["PYTHONPATH"]},
        flags=[*flags, *(["--verbose"] if verbose and verbose > 1 else [])],
    )


@dataclass(frozen=True)
class _InRank:
    """The function, in a process where `import horovod` gives this package."""

    func: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        install()
        return self.func(*args, **kwargs)


def _refuse_contradictions(
    hosts: str | None, hostfile: str | None, use_gloo: bool | None, use_mpi: bool | None
) -> None:
    if hosts is not None and hostfile is not None:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")


def _flags(**values: Any) -> list[str]:
    """Those of mydistrun, of what is not None."""
    return [
        text
        for name, value in values.items()
        if value is not None
        for text in (f"--{name.replace('_', '-')}", str(value))
    ]


def _warn_of_older(numbers: Mapping[str, Any], interface: str | None) -> None:
    now = {name: name.replace("np", "num_proc") for name, value in numbers.items() if value}
    if interface:
        now["network_interface"] = "network_interfaces"
    for name, instead in now.items():
        text = f"{name} is deprecated, use {instead} instead"
        warnings.warn(text, DeprecationWarning, stacklevel=3)


def _refuse_elastic(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(
                f"run: {name} is for elastic jobs, which `mydistrun --min-np` starts; leave it out"
            )


def _is_this_python(executable: str) -> bool:
    return os.path.realpath(executable) == os.path.realpath(sys.executable)
