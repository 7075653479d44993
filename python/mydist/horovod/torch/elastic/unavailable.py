"""The error of everything that needs an elastic job."""

from __future__ import annotations


def unavailable(name: str) -> NotImplementedError:
    """What using the name is."""
    return NotImplementedError(
        f"hvd.elastic.{name} needs ranks that come and go, which mydist does not have yet. Save "
        'with mydist.Checkpoint(folder, …, resume="auto") and start the job again: it goes on from '
        "there"
    )
