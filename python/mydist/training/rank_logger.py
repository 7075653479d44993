"""get_logger: logging once per job instead of once per rank."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from ..job.error_text import wrong_type
from ..job.topology import is_initialized, rank, size

__all__ = ["get_logger"]


class _RankLogger(logging.LoggerAdapter[logging.Logger]):
    """Asks for the rank at every record, so that it can be made before init()."""

    def __init__(self, logger: logging.Logger, all_ranks: bool) -> None:
        super().__init__(logger, {})
        self._all_ranks = all_ranks

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        if not self._all_ranks and is_initialized() and rank() != 0:
            return False
        return super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        if is_initialized():
            msg = f"[rank {rank()}/{size()}] {msg}"
        return msg, kwargs


def get_logger(
    name: str | None = None, all_ranks: bool = False
) -> logging.LoggerAdapter[logging.Logger]:
    """A logger that records on rank 0 only, with "[rank 0/4] " in front of each message.

    Level, handlers and format are those of `logging.getLogger(name)`, which is left as it is; call
    `logging.basicConfig(level=logging.INFO)` to see more than warnings. Before init() and after
    shutdown() a process has no rank: then every process records, without the prefix.

    Args:
        name: as for `logging.getLogger`, usually `__name__`.
        all_ranks: record on every rank.

    Raises:
        TypeError: `name` is no str.
    """
    if name is not None and not isinstance(name, str):
        raise wrong_type("get_logger: name", name, "a str or None")
    return _RankLogger(logging.getLogger(name), bool(all_ranks))
