"""What leaves the training function when the ranks are to meet anew."""

from __future__ import annotations

__all__ = ["HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - the name of horovod.common.exceptions
    """Ranks or hosts have come, or hosts were taken away. `elastic.run` catches it.

    Attributes:
        skip_sync: whether the state need not be sent; always False here, as new ranks lack it.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed; the ranks meet anew")
        self.skip_sync = skip_sync
