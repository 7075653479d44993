"""elastic.run: calls the training function again in each epoch of the job."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import MismatchError, MydistError, VersionMismatchError
from ..job.init import init, shutdown
from ..job.topology import size
from ..job.worker import LauncherLostError, worker
from ..optim.wrapping import renew_all
from .interrupt import HostsUpdatedInterrupt
from .state import TorchState

__all__ = ["run"]

# After these another epoch would fail in the same way. Others come with the loss of a rank.
_LASTING = (LauncherLostError, MismatchError, VersionMismatchError)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a training function whose first argument is a `TorchState`.

    The function is called when all ranks have the state. When a rank is lost, the state goes back
    to the last commit; when ranks or hosts come, it stays as it is. Then the ranks that are there
    form the next epoch of the job in the same processes: rank() and size() change, a
    DistributedOptimizer begins anew, reset callbacks are called, and so is the function. It ends
    when the function returns. Without `mydistrun --min-np` and alike the function is called once.

    Raises:
        ValueError: several ranks were started by torchrun or mpirun, which cannot replace them.
    """

    @functools.wraps(func)
    def elastic(state: TorchState, *args: Any, **kwargs: Any) -> Any:
        init()
        place = worker()
        if place is None:
            refuse_other_launchers(size())
            state.sync()
            return func(state, *args, **kwargs)
        enters = False
        while True:
            try:
                if enters:
                    _enter_next_epoch(state)
                enters = True
                state.sync()
                result = func(state, *args, **kwargs)
                place.tell_done()
                return result
            except HostsUpdatedInterrupt:
                pass
            except _LASTING:
                raise
            except MydistError as error:
                state.restore()
                place.note_loss(error)
                # While the error is handled, this does not wait for ranks at work.
                with contextlib.suppress(MydistError):
                    shutdown()

    return elastic


def _enter_next_epoch(state: TorchState) -> None:
    """Raises MydistError when yet another rank is lost."""
    shutdown()
    init()
    renew_all()
    state.on_reset()


def refuse_other_launchers(ranks: int, environment: Mapping[str, str] = os.environ) -> None:
    """Raises ValueError where a lost rank would end the job all the same."""
    is_of_mpi = "OMPI_COMM_WORLD_RANK" in environment
    if ranks == 1 or ("MYDIST_RANK" in environment and not is_of_mpi):
        return
    launcher = "mpirun" if is_of_mpi else "torchrun"
    raise ValueError(
        f"elastic.run: {launcher} has started these {ranks} ranks, and ends or restarts all of "
        "them when one is lost. Start with `mydistrun --min-np 1 --max-np "
        f"{ranks} python train.py`, or save with mydist.Checkpoint and leave elastic.run out"
    )
