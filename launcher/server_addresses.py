"""Where the servers of a job listen: what each reports at its start, and what the ranks get. Pure.

A server inherits a pipe and writes one line into it once it listens: `NUMBER HOST PORT LOCAL`.
LOCAL is the name of its Unix socket and may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mydist.launcher.hosts import bracketed

FD_VARIABLE = "MYDIST_SERVER_ADDRESS_FD"
VARIABLE = "MYDIST_SERVER_ADDRESSES"
MAX_LINE_BYTES = 512
_LINE = re.compile(
    r"(?P<number>[0-9]{1,9}) (?P<host>[A-Za-z0-9_.:%-]{1,255}) (?P<port>[0-9]{1,5})"
    r"(?: (?P<local>[!-+\--~]{0,107}))?\Z"
)
_MAX_PORT = 65535


@dataclass(frozen=True)
class ServerAddress:
    """Of one server. An IPv6 `host` has no brackets; `local` is empty without a Unix socket."""

    number: int
    host: str
    port: int
    local: str

    @property
    def text(self) -> str:
        """As it stands in VARIABLE: `0=HOST:PORT/LOCAL`."""
        return f"{self.number}={bracketed(self.host)}:{self.port}/{self.local}"


def parse_address(line: bytes, number: int) -> ServerAddress:
    """What the server of this number has reported. Raises ValueError saying what was expected."""
    match = _LINE.match(line.decode("ascii", "replace"))
    expected = f"'{number} HOST PORT LOCAL'"
    if match is None or int(match["number"]) != number:
        raise ValueError(expected)
    port = int(match["port"])
    if not 1 <= port <= _MAX_PORT:
        raise ValueError(f"{expected} with a port from 1 to {_MAX_PORT}")
    return ServerAddress(number, match["host"], port, match["local"] or "")


def join_addresses(addresses: Iterable[ServerAddress]) -> str:
    """The value of VARIABLE, in the order of the servers."""
    return ",".join(address.text for address in sorted(addresses, key=lambda each: each.number))
