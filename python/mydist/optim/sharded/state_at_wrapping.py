"""Whether all ranks have state of the same parameters when an optimizer is wrapped.

A rank without the state of its slice would begin it anew, and train other numbers than the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from ...collectives.objects import allgather_object
from ...errors import MismatchError
from ...job import topology
from ...job.error_text import difference_text
from ...job.process_set import ProcessSet

_HINT = (
    "Load the state on every rank, or call mydist.broadcast_optimizer_state(optimizer, "
    "root_rank=0), before ShardedOptimizer."
)


def expect_same_state(
    optimizer: torch.optim.Optimizer,
    named: Iterable[tuple[torch.Tensor, str]],
    process_set: ProcessSet,
) -> None:
    """Raises MismatchError on every rank, naming the first parameter and the ranks. Collective."""
    if process_set.size() == 1:
        return
    own = {name: sorted(map(str, optimizer.state.get(p, {}))) for p, name in named}
    own = {name: keys for name, keys in own.items() if keys}
    digest = hashlib.blake2b(repr(sorted(own.items())).encode(), digest_size=16).digest()
    name = "sharded.state_at_wrapping"
    if len(set(allgather_object(digest, name, process_set))) == 1:
        return
    table = dict(allgather_object((topology.rank(), own), f"{name}.keys", process_set))
    names = sorted({name for of_rank in table.values() for name in of_rank})
    differing = [n for n in names if len({str(of_rank.get(n)) for of_rank in table.values()}) > 1]
    found = {rank: of_rank.get(differing[0]) for rank, of_rank in table.items()}
    raise MismatchError(
        difference_text(
            f"ShardedOptimizer: the state of parameter '{differing[0]}' differs between ranks",
            {rank: ", ".join(keys) if keys else "none" for rank, keys in found.items()},
            differing,
            _HINT,
        )
    )
