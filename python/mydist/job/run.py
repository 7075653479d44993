"""run: calls a function on several ranks and brings back what it returns.

The function travels by cloudpickle in a private folder that the ranks also put their results
into. Jobs on other hosts need that folder on a shared file system.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MydistError
from .error_text import text_of
from .pickling import dumps

__all__ = ["run"]


@dataclass(frozen=True)
class Result:
    """What a rank's call returned; travels pickled from the rank."""

    rank: int
    kind: str  # The name of its class.
    data: bytes  # It, pickled.


@dataclass(frozen=True)
class Failure:
    """How a rank's call ended when it raised; travels pickled from the rank."""

    rank: int
    at: float  # time.time() of the rank
    text: str  # the traceback
    error: bytes  # the pickled exception; empty when it could not be pickled
    is_consequence: bool  # the rank failed because another one did


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    hosts: str | None = None,
    *,
    backend: str | None = None,
    env: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    flags: Sequence[str] = (),
) -> list[Any]:
    """Returns `func(*args, **kwargs)` of every rank, in rank order. Blocking.

    `func` runs in new processes started as `mydistrun` starts them; it calls `mydist.init()`
    itself. Their output appears on this process's output, prefixed by rank.

    Args:
        func: any function, lambdas and local ones included. A script that calls `run` needs the
            usual `if __name__ == "__main__":`.
        args: positional arguments; cloudpickle must accept them, and the results.
        kwargs: keyword arguments.
        num_proc: number of ranks.
        hosts: as `mydistrun -H`, for example "host1:4,host2:4"; default: this host.
        backend: "gloo" or "mpi"; default: as mydistrun chooses.
        env: further environment variables of the ranks.
        folder: where function and results are exchanged, in a new folder of mode 0700; must be on a
            file system that all hosts share when `hosts` names others. Default: the system's
            folder for temporary files.
        flags: further flags of mydistrun.

    Raises:
        ValueError: an argument is wrong or cannot be pickled.
        Exception: what a rank raised first, with that rank's traceback as a note.
        MydistError: the job ended without results, an exception could not be pickled, or a result
            cannot be rebuilt here; the text names the rank and the class.
    """
    if isinstance(num_proc, bool) or not isinstance(num_proc, int) or num_proc < 1:
        raise ValueError(f"num_proc is {num_proc!r}, expected an integer of at least 1")
    if backend not in (None, "gloo", "mpi"):
        raise ValueError(f"backend is {backend!r}, expected 'gloo', 'mpi' or None")
    call = _pickled_call((func, tuple(args), dict(kwargs or {})))
    command = [sys.executable, "-m", "mydist.launcher", "-np", str(num_proc)]
    if hosts is not None:
        command += ["-H", hosts]
    if backend is not None:
        command.append(f"--{backend}")
    for name in env or {}:
        command += ["-x", name]
    with tempfile.TemporaryDirectory(prefix="mydist-run-", dir=folder) as exchange:
        _write_call(Path(exchange), call)
        command += [*flags, sys.executable, "-m", "mydist.job.run_rank", exchange]
        code = _wait(command, {**os.environ, **(env or {})})
        return _results(Path(exchange), num_proc, code)


def _pickled_call(call: Any) -> bytes:
    """The pickled call; what a script defines travels whole. Raises ValueError."""
    try:
        return dumps(call, by_value=True)
    except Exception as error:  # pickling runs code of the arguments, which may raise anything
        raise ValueError(f"func or its arguments cannot be pickled: {text_of(error)}") from error


def _write_call(exchange: Path, call: bytes) -> None:
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None) if main.__spec__ is None else None
    module = None if main.__spec__ is None else main.__spec__.name
    (exchange / "setting.pkl").write_bytes(
        pickle.dumps({"path": sys.path, "script": script, "module": module})
    )
    (exchange / "call.pkl").write_bytes(call)


def _wait(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code of the launcher, which is ended when this call is interrupted."""
    with subprocess.Popen(list(command), env=dict(environment)) as job:
        try:
            return job.wait()
        except BaseException:
            job.terminate()
            job.wait()
            raise


def _results(exchange: Path, num_proc: int, code: int) -> list[Any]:
    outcomes: dict[int, Any] = {}
    for rank in range(num_proc):
        path = exchange / f"result.{rank}.pkl"
        if path.exists():
            outcomes[rank] = pickle.loads(path.read_bytes())
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Failure)]
    if failures:
        raise _exception_of(min(failures, key=lambda f: (f.is_consequence, f.at)))
    missing = [rank for rank in range(num_proc) if rank not in outcomes]
    if code != 0 or missing:
        raise MydistError(
            f"the job ended with exit code {code} and without results from ranks {missing}; see "
            "its output. With several hosts, `folder` must be on a shared file system"
        )
    return [_rebuilt(outcomes[rank]) for rank in range(num_proc)]


def _rebuilt(result: Result) -> Any:
    """What the call of a rank returned. Raises MydistError."""
    try:
        return pickle.loads(result.data)
    except Exception as error:  # unpickling runs code of the result, which may raise anything
        raise MydistError(
            f"run: cannot rebuild the {result.kind} that rank {result.rank} returned: "
            f"{text_of(error)}. Define its class in a module that this process can "
            "import, or return plain values"
        ) from error


def _exception_of(failure: Failure) -> Exception:
    error: Exception | None = None
    if failure.error:
        try:
            error = pickle.loads(failure.error)
        except Exception:  # a class whose constructor wants more than pickle kept
            error = None
    if not isinstance(error, Exception):
        return MydistError(f"rank {failure.rank} raised an exception:\n{failure.text}")
    error.add_note(f"raised on rank {failure.rank}:\n{failure.text}")
    return error
