"""Ranks of one machine that take themselves for ranks on several hosts."""

from __future__ import annotations

import os


def pretend_hosts() -> None:
    """Gives each TEST_RANKS_PER_HOST ranks another host's name; without it, does nothing.

    Before `mydist.init()`. The last host may have fewer ranks.
    """
    per_host = int(os.environ.get("TEST_RANKS_PER_HOST", "0"))
    if per_host > 0:
        rank = int(os.environ.get("MYDIST_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
        os.environ["MYDIST_HOST_ID"] = f"host{rank // per_host}"
