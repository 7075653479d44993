"""One rank of mydist.run: reads the call, makes it, writes the outcome. Private.

Started by mydistrun: python -m mydist.job.run_rank FOLDER
"""

from __future__ import annotations

import importlib
import os
import pickle
import runpy
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

from mydist.errors import MydistError
from mydist.job.pickling import dumps
from mydist.job.run import Failure, Result


def main() -> int:
    """Returns the exit code: 1 when the call raised."""
    exchange = Path(sys.argv[1])
    rank = int(os.environ.get("MYDIST_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    outcome: Result | Failure
    try:
        _restore_main(pickle.loads((exchange / "setting.pkl").read_bytes()))
        func, args, kwargs = pickle.loads((exchange / "call.pkl").read_bytes())
        result = func(*args, **kwargs)
        outcome = Result(rank, type(result).__qualname__, dumps(result))
    except Exception as error:
        outcome = _failure(rank, error)
        print(outcome.text, file=sys.stderr, flush=True)
    # Under its final name only when it is whole: the rank may be killed at any time.
    partial = exchange / f"partial.{rank}.pkl"
    partial.write_bytes(pickle.dumps(outcome))
    partial.rename(exchange / f"result.{rank}.pkl")
    return 1 if isinstance(outcome, Failure) else 0


def _failure(rank: int, error: Exception) -> Failure:
    try:
        pickled = pickle.dumps(error)
    except Exception:  # the text has to do
        pickled = b""
    text = "".join(traceback.format_exception(error))
    return Failure(rank, time.time(), text, pickled, isinstance(error, MydistError))


def _restore_main(setting: dict[str, Any]) -> None:
    """Makes what the caller's script defines importable here, without running it as a script."""
    sys.path[:] = setting["path"]
    if setting["module"] is not None:
        name = setting["module"]
        if name.rpartition(".")[2] != "__main__":  # a package's entry point would run
            sys.modules["__main__"] = importlib.import_module(name)
    elif setting["script"] is not None and Path(setting["script"]).exists():
        script = types.ModuleType("__main__")
        script.__dict__.update(runpy.run_path(setting["script"], run_name="__mydist_run__"))
        sys.modules["__main__"] = script


if __name__ == "__main__":
    sys.exit(main())
