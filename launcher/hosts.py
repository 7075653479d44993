"""The host list of a job: `-H h1:4,[fe80::1]:2` or a hostfile, parsed and checked."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from mydist.launcher.bounded_file import read_bounded
from mydist.launcher.errors import UsageError, shown

MAX_SLOTS = 65536
MAX_NAME_BYTES = 253  # of DNS
MAX_HOSTFILE_BYTES = 1 << 20
MAX_LISTED_HOSTS = 8
_NAME = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.][A-Za-z0-9_.-]*\Z")
_BRACKETED = re.compile(
    r"(?P<user>[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?\[(?P<address>[^\]]*)\](?P<rest>.*)\Z"
)


@dataclass(frozen=True)
class Host:
    """One entry of the host list: the name as written (IPv6 without brackets) and its slots."""

    name: str
    slots: int

    @property
    def address(self) -> str:
        """The name without `user@`: what a peer connects to."""
        return self.name.rpartition("@")[2]

    def is_local(self) -> bool:
        """True for localhost, loopback addresses and this machine's own hostname."""
        if "@" in self.name:
            return False
        own = socket.gethostname()
        if self.name in ("localhost", own, own.partition(".")[0]):
            return True
        try:
            return ipaddress.ip_address(self.name).is_loopback
        except ValueError:
            return False


def parse_host_list(text: str) -> tuple[Host, ...]:
    """Parses `name[:slots],…`; an IPv6 address is written in brackets. Without slots: 1.

    Raises UsageError naming the entry.
    """
    where = f"-H {shown(text)}"
    return _checked((_parse_entry(entry.strip(), where) for entry in text.split(",")), "-H")


def parse_server_hosts(text: str, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Parses `name,…`, the hosts of servers. One that is among `hosts` is that entry.

    Raises UsageError naming the entry.
    """
    where = f"--server-hosts {shown(text)}"
    known = {host.name: host for host in hosts}
    found: dict[Host, None] = {}  # In order; a list would be searched anew for each entry.
    for entry in map(str.strip, text.split(",")):
        if not entry:
            raise UsageError(f"{where}: empty entry; expected names separated by commas")
        host = _parse_entry(entry, where)
        if ":" in entry and not entry.endswith("]"):
            raise UsageError(
                f"{where}: {shown(entry)}: a server takes no slot; write the host alone"
            )
        host = known.get(host.name, host)
        if host in found:
            raise UsageError(
                f"{where}: host {host.name!r} is listed twice; "
                f"servers are spread over the hosts in turn, so list each once"
            )
        found[host] = None
    return tuple(found)


def parse_hostfile(path: str) -> tuple[Host, ...]:
    """Reads one host per line, `name slots=4` or `name:4`; `#` starts a comment.

    Raises UsageError naming file, line and entry.
    """
    try:
        text = read_bounded(path, "--hostfile", MAX_HOSTFILE_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"--hostfile {path!r}: not a text file (invalid UTF-8)") from None
    hosts = parse_hostfile_text(text, path, where=f"--hostfile {path!r}")
    if not hosts:
        raise UsageError(f"--hostfile {path!r}: lists no host; expected lines like 'host1 slots=4'")
    return hosts


def parse_hostfile_text(
    text: str, source: str, slots: int = 1, where: str = ""
) -> tuple[Host, ...]:
    """The same of a text; `slots` has a host whose line names none. Raises UsageError."""
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            host = _parse_line(words, f"{source}:{number}")
            names_slots = len(words) > 1 or re.search(r":[0-9]+\Z", words[0].rpartition("]")[2])
            hosts.append(host if names_slots else Host(host.name, slots))
    return _checked(hosts, where or source)


def require_slots(hosts: tuple[Host, ...], num_proc: int) -> None:
    """Raises UsageError when the hosts have fewer slots than ranks are asked for."""
    slots = sum(host.slots for host in hosts)
    if slots < num_proc:
        listed = ",".join(format_entry(host) for host in hosts[:MAX_LISTED_HOSTS])
        if len(hosts) > MAX_LISTED_HOSTS:
            listed += f",… ({len(hosts)} in all)"
        raise UsageError(
            f"-np {num_proc}: the hosts {listed} have only {slots} slot{'s' * (slots != 1)}; "
            f"add slots or hosts, or use -np {slots}"
        )


def format_entry(host: Host) -> str:
    """The entry as the user would write it, e.g. `host1:4` or `[::1]:2`."""
    user, at, address = host.name.rpartition("@")
    return f"{user}{at}{bracketed(address)}:{host.slots}"


def bracketed(address: str) -> str:
    """An address as it stands before `:port`: IPv6 in brackets, anything else unchanged."""
    return f"[{address}]" if ":" in address else address


def _parse_line(words: list[str], where: str) -> Host:
    if len(words) == 1:
        return _parse_entry(words[0], where)
    if len(words) > 2 or not words[1].startswith("slots="):
        raise UsageError(
            f"{where}: got {shown(' '.join(words))}, expected 'name slots=N' or 'name:N'"
        )
    host = _parse_entry(words[0], where)
    if host.slots != 1 or words[0].endswith(":1"):
        raise UsageError(
            f"{where}: {shown(' '.join(words))} gives the slots twice; keep one of them"
        )
    return Host(host.name, _parse_slots(words[1].removeprefix("slots="), words[0], where))


def _parse_entry(entry: str, where: str) -> Host:
    if not entry:
        raise UsageError(f"{where}: empty host entry; expected name:slots separated by commas")
    if entry.startswith("-"):
        raise UsageError(f"{where}: host {shown(entry)} starts with '-'; a host name may not")
    match = _BRACKETED.match(entry)
    if match:
        rest = match["rest"]
        if rest and not rest.startswith(":"):
            raise UsageError(
                f"{where}: {shown(entry)}: expected ':slots' after ']', got {shown(rest)}"
            )
        _check_length((match["user"] or "").removesuffix("@"), where)
        name = (match["user"] or "") + _checked_ipv6(match["address"], entry, where)
        return Host(name, _parse_slots(rest[1:], entry, where) if rest else 1)
    if entry.count(":") > 1:
        raise UsageError(
            f"{where}: {shown(entry)}: write an IPv6 address in brackets, e.g. [fe80::1]:4"
        )
    name, colon, slots = entry.partition(":")
    if not _NAME.match(name):
        raise UsageError(
            f"{where}: {shown(name)} is not a host name; "
            f"letters, digits, '.', '_' and '-' are allowed"
        )
    for part in name.split("@"):
        _check_length(part, where)
    return Host(name, _parse_slots(slots, entry, where) if colon else 1)


def _check_length(name: str, where: str) -> None:
    if len(name) > MAX_NAME_BYTES:
        raise UsageError(
            f"{where}: {shown(name)}: got a name of {len(name)} bytes, "
            f"at most {MAX_NAME_BYTES} are allowed"
        )


def _checked_ipv6(address: str, entry: str, where: str) -> str:
    base, percent, scope = address.partition("%")
    try:
        ipaddress.IPv6Address(base)
    except ValueError:
        raise UsageError(
            f"{where}: {shown(entry)}: {shown(address)} is not an IPv6 address"
        ) from None
    if percent and not re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", scope):
        raise UsageError(f"{where}: {shown(entry)}: {shown(scope)} is not an interface name")
    return address


def _parse_slots(text: str, entry: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or not 1 <= int(text) <= MAX_SLOTS:
        raise UsageError(
            f"{where}: {shown(entry)}: slots must be an integer from 1 to {MAX_SLOTS}, "
            f"got {shown(text)}"
        )
    return int(text)


def _checked(hosts: Iterable[Host], source: str) -> tuple[Host, ...]:
    seen: dict[str, Host] = {}
    for host in hosts:
        if host.name in seen:
            raise UsageError(
                f"{source}: host {host.name!r} is listed twice; "
                f"give one entry with all its slots, e.g. "
                f"{format_entry(Host(host.name, host.slots + seen[host.name].slots))}"
            )
        seen[host.name] = host
    return tuple(seen.values())
