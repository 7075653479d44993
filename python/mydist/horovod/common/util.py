"""The functions of `horovod.common.util` that programs call."""

from __future__ import annotations

import os
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ..._torch_version import built_for
from ...job import build_report
from .exceptions import HorovodVersionMismatchError, get_version_mismatch_message

__all__ = [
    "EXTENSIONS",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

_Item = TypeVar("_Item")

EXTENSIONS = ["tensorflow", "torch", "mxnet"]


def get_ext_suffix() -> str:
    """How the file name of a compiled extension ends."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """The file of an extension: its folders and name, beside the file `pkg_path`."""
    assert args
    return os.path.join(os.path.dirname(pkg_path), *args[:-1], args[-1] + get_ext_suffix())


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError for the extension of another framework than PyTorch."""
    if ext_name not in ("torch", "horovod.torch"):
        raise ImportError(f"Extension {ext_name} has not been built: mydist is for PyTorch")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is an extension for that framework; there is one for torch."""
    return ext_base_name == "torch"


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether that framework has a GPU; only torch is asked."""
    return ext_base_name == "torch" and torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:
    """Whether MPI was built."""
    return bool(build_report.mpi_built())


def gloo_built(verbose: bool = False) -> bool:
    """Whether Gloo was built."""
    return bool(build_report.gloo_built())


def nccl_built(verbose: bool = False) -> int:
    """The version of the NCCL that is found, or 0."""
    return int(build_report.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    """False."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """False."""
    return False


@contextmanager
def env(**kwargs: Any) -> Iterator[None]:
    """Within this context the variables have these values; None leaves one as it is."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """A function of `op` and the older `average` that gives the op; `reduce_ops` has the ops.

    It raises ValueError when both are given, and warns of `average`.
    """

    def chosen(op: Any, average: Any) -> Any:
        if op is not None:
            if average is not None:
                raise ValueError(
                    "The op parameter supersedes average. Please provide only one of them."
                )
            return op
        if average is None:
            return reduce_ops.Average
        warnings.warn(
            "Parameter `average` has been replaced with `op` and will be removed in v1.0",
            DeprecationWarning,
            stacklevel=3,
        )
        return reduce_ops.Average if average else reduce_ops.Sum

    return chosen


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is a power of 2."""
    return num_rank.bit_count() == 1


def split_list(l: Sequence[_Item], n: int) -> list[Sequence[_Item]]:  # noqa: E741 - Horovod's name
    """The list in `n` runs of neighbours, of which the first may be one longer than the others."""
    least, longer = divmod(len(l), n)
    starts = [index * least + min(index, longer) for index in range(n + 1)]
    return [l[start:end] for start, end in zip(starts, starts[1:], strict=False)]


def check_installed_version(
    name: str, version: str, exception: BaseException | None = None
) -> None:
    """Warns when mydist was compiled for another PyTorch, or raises what `exception` caused.

    Raises HorovodVersionMismatchError where an exception is given.
    """
    compiled = built_for()
    if name != "pytorch" or compiled in ("", version):
        return
    if exception is not None:
        raise HorovodVersionMismatchError(name, version, compiled) from exception
    warnings.warn(get_version_mismatch_message(name, version, compiled), stacklevel=2)


def is_iterable(x: Any) -> bool:
    """Whether iter() takes it."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is `target`, of the form major.minor.patch, or a later one.

    Raises ValueError for what is no text, or a target of another form.
    """
    for value in (ver, target):
        if not isinstance(value, str):
            raise ValueError(
                "This function only accepts string arguments. \n"
                f"Received:\n\t- ver (type {type(ver)}: {ver})"
                f"\t- target (type {type(target)}: {target})"
            )
    if len(target.split(".")) != 3:
        raise ValueError(
            "We only accepts target version values in the form of: major.minor.patch. "
            f"Received: {target}"
        )
    return torch.torch_version.TorchVersion(ver) >= target
