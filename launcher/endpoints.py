"""Addresses and ports: where this machine is reachable from the other hosts of a job."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from mydist.launcher.errors import LaunchError

_SIOCGIFADDR = 0x8915


def free_port(address: str) -> int:
    """A TCP port that is free on `address` right now, as the kernel picks it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def address_towards(host: str) -> str | None:
    """The address of this machine that packets to `host` leave from; sends nothing.

    None when the name is unknown here or there is no route. Looks the name up once.
    """
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, proto, _, target in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, proto) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
    return None


def first_interface(names: tuple[str, ...]) -> tuple[str, str]:
    """Name and address of the first interface named that exists here and has an address.

    Raises LaunchError listing the interfaces there are.
    """
    for name in names:
        address = _ipv4_address(name) or _ipv6_address(name)
        if address is not None:
            return name, address
    existing = ", ".join(name for _, name in socket.if_nameindex())
    raise LaunchError(
        f"--network-interfaces {','.join(names)}: "
        "this machine has no such interface with an address; "
        f"it has {existing}"
    )


def interface_addresses() -> dict[str, str]:
    """The address of each interface of this machine that has one, as first_interface() finds it."""
    names = [name for _, name in socket.if_nameindex()]
    found = {name: _ipv4_address(name) or _ipv6_address(name) for name in names}
    return {name: address for name, address in found.items() if address is not None}


def is_own_address(address: str) -> bool:
    """Whether a socket can be bound to the address on this machine."""
    with contextlib.suppress(OSError):
        free_port(address)
        return True
    return False


def peer_address(host: str, ssh_connection: str) -> str:
    """How others reach a remote host: its name when it resolves here, else the address that ssh
    arrived at (`ssh_connection` is SSH_CONNECTION as the agent saw it)."""
    with contextlib.suppress(OSError, UnicodeError):
        socket.getaddrinfo(host, None)
        return host
    fields = ssh_connection.split()
    return fields[2] if len(fields) == 4 else host


def listening_address(host: str, hello: Mapping[str, Any], interfaces: Sequence[str]) -> str:
    """The address at which a remote host is reached by the others: of the first of `interfaces`
    that it has, else the one that ssh arrived at. `hello` is what its agent said.

    Raises LaunchError listing the interfaces that the host has.
    """
    there = hello.get("interfaces")
    there = there if isinstance(there, dict) else {}
    for name in interfaces:
        if name in there:
            return str(there[name])
    if interfaces:
        raise LaunchError(
            f"--network-interfaces {','.join(interfaces)}: host {host!r} has no such interface "
            f"with an address; it has {', '.join(map(str, there))}"
        )
    fields = str(hello.get("ssh_connection", "")).split()
    return fields[2] if len(fields) == 4 else host


def address_seen_by(host: str, ssh_connection: str) -> str:
    """The address of this machine that a remote host can connect to. Raises LaunchError."""
    address = address_towards(host)
    if address is not None:
        return address
    fields = ssh_connection.split()
    if len(fields) == 4 and is_own_address(fields[0]):
        return fields[0]
    raise LaunchError(
        f"cannot find an address of this machine that host {host!r} can reach; "
        f"name the interface with --network-interfaces"
    )


def _ipv4_address(name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    return None


def _ipv6_address(name: str) -> str | None:
    if not os.path.exists("/proc/net/if_inet6"):
        return None
    with open("/proc/net/if_inet6", encoding="ascii") as file:
        for line in file:
            fields = line.split()
            if fields[5] == name:
                address = ipaddress.IPv6Address(int(fields[0], 16))
                return f"{address}%{name}" if address.is_link_local else str(address)
    return None
