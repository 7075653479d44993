"""Where the ranks of a job find each other: the rendezvous, and the address of rank 0's host."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from mydist.job.rendezvous_wire import KEY_BYTES
from mydist.launcher.endpoints import free_port
from mydist.launcher.environment import Endpoints
from mydist.launcher.hosts import Host, bracketed
from mydist.launcher.platforms.platform import Launch
from mydist.launcher.rendezvous_server import RendezvousServer


class MeetingPoint:
    """The rendezvous of one job, for platforms that start the ranks themselves.

    Every rank inherits `key`, the 32-byte job key.
    """

    def __init__(self, launch: Launch) -> None:
        self.key = secrets.token_bytes(KEY_BYTES)
        self._job_id = secrets.token_hex(8)
        self._launch = launch
        self._server: RendezvousServer | None = None

    def open(
        self, reached: Mapping[Host, str], master_address: str, master_port: int | None = None
    ) -> dict[Host, Endpoints]:
        """Starts the rendezvous; returns what the ranks of each host need to know.

        Args:
            reached: for each host the address of this machine that its ranks connect to.
            master_address: where the ranks reach the host of rank 0.
            master_port: a free port there; None: this host is the one, and picks a port.
        """

        def log(text: str) -> None:  # from the server's thread
            self._launch.loop.call_soon_threadsafe(self._launch.tell, text)

        num_proc = self._launch.spec.num_proc
        self._server = RendezvousServer(self._job_id, self.key, num_proc, log)
        ports = self._server.start(list(dict.fromkeys(reached.values())))
        for address, port in ports.items():
            self._launch.tell(f"rendezvous listens on {bracketed(address)}:{port}")
        if master_port is None:
            master_port = free_port(master_address)
        return {
            host: Endpoints(
                master_address, master_port, f"{bracketed(near)}:{ports[near]}", self._job_id
            )
            for host, near in reached.items()
        }

    def close(self) -> None:
        """Stops the rendezvous, if it runs."""
        if self._server is not None:
            self._server.stop()
