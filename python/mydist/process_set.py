"""Process sets: the ranks that take part in a collective.

This version has one, `global_process_set`, which is the whole job.
"""

from __future__ import annotations

from . import _lifecycle

__all__ = ["ProcessSet", "global_process_set"]


class ProcessSet:
    """The ranks that take part in a collective.

    This version has the global set only: pass `global_process_set`, or leave the argument out.
    """

    def __init__(self, ranks: None = None) -> None:
        """The whole job. Raises ValueError when ranks are given."""
        if ranks is not None:
            raise ValueError(
                f"ProcessSet({ranks!r}): sets of some of the ranks are not part of this version; "
                "use mydist.global_process_set"
            )

    @property
    def process_set_id(self) -> int:
        """The same number on all ranks; 0 is the whole job."""
        return 0

    @property
    def ranks(self) -> list[int]:
        """The global ranks in it, ascending. Raises ValueError before mydist.init()."""
        return list(range(_lifecycle.size()))

    def size(self) -> int:
        """How many ranks are in it. Raises ValueError before mydist.init()."""
        return _lifecycle.size()

    def rank(self) -> int:
        """This process's index in the set. Raises ValueError before mydist.init()."""
        return _lifecycle.rank()

    def included(self) -> bool:
        """Whether this process is in the set. Raises ValueError before mydist.init()."""
        _lifecycle.rank()
        return True

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id})"


global_process_set = ProcessSet()
