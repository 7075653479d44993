"""The flags of `mydistrun` as one table, and the parser that reads them.

The table is also what the help text, the config file and the documentation test are made from.
Both spellings of a flag are understood: `--num-proc` and `--num_proc`. The first token that is
neither a flag nor a flag's value ends the options; it and all that follows is the user's command.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from mydist.launcher.errors import UsageError, shown
from mydist.launcher.value_text import (
    Convert,
    choice,
    cooldown_range,
    integer,
    interface_names,
    number,
    path,
    paths,
    row_name,
    seconds,
    seconds_or_zero,
    switch,
    text_value,
    words,
)

SIMD_PATHS = ("auto", "avx512", "avx2", "portable")
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "off")


@dataclass(frozen=True)
class Flag:
    """One flag. `convert` turns its text into a value or raises ValueError saying what it
    expected; None makes it a switch. `variable` is the MYDIST_* variable of a tunable.
    """

    names: tuple[str, ...]
    help: str
    convert: Convert | None = None
    metavar: str = ""
    variable: str | None = None
    negatable: bool = False
    repeated: bool = False
    command_line_only: bool = False

    @property
    def key(self) -> str:
        """The canonical name: the longest spelling without dashes, e.g. `num-proc`."""
        return max(self.names, key=len).lstrip("-")


@dataclass
class ParsedFlags:
    """What stood on the command line: values by flag key, and the user's command."""

    values: dict[str, object] = field(default_factory=dict)
    command: tuple[str, ...] = ()


def _flag(
    spelling: str,
    help: str,
    convert: Convert | None = None,
    variable: str | None = None,
    **more: bool,
) -> Flag:
    """`spelling` has the names, and what stands for the value: `-p --ssh-port PORT`."""
    parts = spelling.split()
    names = tuple(word for word in parts if word.startswith("-"))
    return Flag(names, help, convert, "".join(parts[len(names) :]), variable, **more)


def _tunable(
    spelling: str, help: str, convert: Convert | None = None, variable: str = "", **more: bool
) -> Flag:
    """A flag for a setting of the ranks, whose variable is MYDIST_NAME unless told otherwise."""
    name = spelling.split()[0].lstrip("-").replace("-", "_").upper()
    return _flag(spelling, help, convert, variable or f"MYDIST_{name}", **more)


# Not in a config file.
_typed = partial(_flag, command_line_only=True)

FLAGS: tuple[Flag, ...] = (
    _flag("-np --num-proc N", "ranks to start [all local GPUs, else all cores]", integer(1, 65536)),
    _flag("-H --hosts LIST", "hosts and their slots: h1:4,[fe80::1]:4", text_value),
    _flag("--hostfile FILE", "file with one host per line: 'name slots=N'", text_value),
    _flag(
        "--servers N",
        "parameter servers to start, each a process of its own [one per server host, else none]",
        integer(1, 1024),
    ),
    _flag("--server-hosts LIST", "hosts of the servers: a,b [the hosts of the ranks]", text_value),
    _flag("--min-np N", "elastic: the job needs at least N ranks [-np]", integer(1, 65536)),
    _flag("--max-np N", "elastic: the job has at most N ranks", integer(1, 65536)),
    _flag(
        "--host-discovery-script COMMAND",
        "elastic: prints the hosts that may be used now, one a line: 'name:slots'",
        words,
    ),
    _flag(
        "--slots-per-host N",
        "elastic: slots of a discovered host that names none [1]",
        integer(1, 65536),
    ),
    _flag(
        "--reset-limit N",
        "elastic: end the job when the ranks would meet anew more than N times [no limit]",
        integer(0, 1_000_000),
    ),
    _flag(
        "--elastic-timeout S",
        "elastic: seconds to wait for --min-np ranks [600]",
        seconds(0.1, 1e6),
    ),
    _flag(
        "--blacklist-cooldown-range LOW,HIGH",
        "elastic: seconds a slot rests after a failure; doubles from LOW to HIGH [0.5,60]",
        cooldown_range,
    ),
    _flag("--mpi", "start the ranks with mpirun; negotiate over MPI"),
    _flag("--gloo", "start the ranks directly or through ssh; negotiate over Gloo"),
    _tunable(
        "--timeline-filename PATH",
        "write the timeline of all ranks to this file",
        path,
        variable="MYDIST_TIMELINE",
    ),
    _tunable("--timeline-mark-cycles", "mark every engine cycle in the timeline"),
    _typed(
        "-x NAME[=V]",
        "pass a variable to all ranks, with its current or the given value",
        text_value,
        repeated=True,
    ),
    _flag("-p --ssh-port PORT", "port of the remote ssh servers", integer(1, 65535)),
    _flag("-i --ssh-identity-file FILE", "ssh key to log in with", text_value),
    _flag("--ssh-args ARGS", "more arguments for ssh, quoted as in a shell", words),
    _flag("--ssh-local", "reach loopback addresses through ssh as well (not 'localhost')"),
    _flag("--remote-python PATH", "python on the remote hosts [same path as here]", text_value),
    _tunable(
        "--network-interfaces NAMES",
        "interfaces to use, first usable wins [by route]",
        interface_names,
    ),
    _flag("--start-timeout S", "seconds all hosts may take to answer [30]", seconds(0.1, 86400)),
    _flag(
        "--host-timeout S", "a host that is silent for S seconds is lost [10]", seconds(3, 86400)
    ),
    _flag("--stop-timeout S", "seconds between SIGTERM and SIGKILL [2.5]", seconds(0.1, 86400)),
    _flag("--output-filename DIR", "also write DIR/rank.N/stdout and stderr", text_value),
    _flag("--prefix-output-with-timestamp", "put the time before each output line"),
    _typed("--config-file YAML", "YAML file with flags as keys; the command line wins", text_value),
    _tunable(
        "--fusion-threshold-mb MB",
        "fuse tensors into buffers of this size; 0 = never",
        number(0, 1 << 20),
    ),
    _tunable(
        "--cache-capacity N",
        "tensors in the cache of the negotiation; 0 = none",
        integer(0, 1_000_000),
    ),
    _tunable(
        "--freeze-after STEPS",
        "freeze the schedule after this many equal steps; 0 = never",
        integer(0, 1_000_000),
    ),
    _tunable(
        "--algorithm NAME",
        "try this algorithm first, such as flat or hierarchical [auto]",
        row_name,
    ),
    _tunable("--plugins PATHS", "libraries that add transports, algorithms and settings", paths),
    _tunable(
        "--hierarchical-allreduce",
        "reduce inside each host first [as --shared-memory; on GPUs: on]",
        negatable=True,
    ),
    _tunable("--shared-memory", "use shared memory inside a host [on]", negatable=True),
    _tunable(
        "--cross-memory-attach WHEN",
        "read other ranks' private tensors through the kernel: auto, on or off [auto]",
        choice(("auto", "on", "off")),
    ),
    _tunable(
        "--bucket-size-mb MB",
        "enqueue gradients in buckets of this size; 0 = one by one [measured]",
        number(0, 1 << 20),
    ),
    _tunable(
        "--stall-check-warning-time-seconds S",
        "report a stalled tensor after S; 0 = never",
        seconds(0, 1e6),
        variable="MYDIST_STALL_WARNING_SECONDS",
    ),
    _tunable(
        "--stall-check-shutdown-time-seconds S",
        "fail a stalled job after S; 0 = never",
        seconds(0, 1e6),
        variable="MYDIST_STALL_SHUTDOWN_SECONDS",
    ),
    _tunable("--stall-stack", "a rank that others wait for prints its Python stacks"),
    _tunable(
        "--flight-recorder-dir DIR",
        "write the last operations of each rank here when the job fails or stalls",
        path,
    ),
    _tunable(
        "--heartbeat-timeout-seconds S",
        "a rank that gives no sign of life for S is lost; 0 = no heartbeats [10]",
        seconds_or_zero(0.1, 1e6),
    ),
    _tunable(
        "--check-consistency N",
        "compare the ranks' parameters every N steps [0: at the first only, -1: never]",
        integer(-1, 1_000_000_000),
    ),
    _tunable("--check-finite", "fail a reduction whose input has NaN or infinite values"),
    _tunable("--simd KERNELS", f"instruction set: {', '.join(SIMD_PATHS)}", choice(SIMD_PATHS)),
    _tunable(
        "--log-level LEVEL", f"least level to log: {', '.join(LOG_LEVELS)}", choice(LOG_LEVELS)
    ),
    _flag("--mpi-args ARGS", "more arguments for mpirun, quoted as in a shell", words),
    _typed("--horovod", "run a Horovod script as it is; takes horovodrun's flags, too"),
    _typed("-m MODULE", "run a module as `python -m MODULE`; ends the options", text_value),
    _typed("--dry-run", "print command and environment of every rank, start nothing"),
    _typed("--check-build", "print which backends this installation can use"),
    _typed("--doctor", "print versions and resources of this machine"),
    _flag("--verbose", "print each start and each bound address"),
    _typed("--version", "print the version"),
    _typed("-h --help", "print this text"),
)

# Flags of earlier versions: read, named in one warning and otherwise ignored, until the next
# release. `help` says what happens instead.
REMOVED_FLAGS: tuple[Flag, ...] = tuple(
    _flag(
        f"{name} WHEN", "tensors on GPUs are reduced over NCCL or through host memory", text_value
    )
    for name in ("--gpu-ipc", "--cuda-aware-mpi")
)


def parse_flags(arguments: Sequence[str]) -> ParsedFlags:
    """Reads flags up to the first token that is none. Raises UsageError, one line."""
    parsed = ParsedFlags()
    by_name = {name: flag for flag in (*FLAGS, *REMOVED_FLAGS) for name in flag.names}
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        token = rest.pop(0)
        if token == "--":
            break
        name, equals, inline = token.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        flag = by_name.get(name)
        if flag is None:
            _parse_negated(name, token, by_name, parsed)
            continue
        value = _take_value(flag, token.partition("=")[0], inline if equals else None, rest)
        _store(flag, value, name, parsed)
        if flag.key == "m":
            break
    parsed.command = tuple(rest)
    return parsed


def convert_value(convert: Convert | None, text: str, where: str) -> object:
    """The value in a text; `where` names the flag or variable in the error. None: a switch."""
    try:
        return (convert or switch)(text)
    except ValueError as error:
        raise UsageError(f"{where}: got {shown(text)}, expected {error}") from None


def format_help() -> str:
    """The help text, from the table."""
    lines = [
        "usage: mydistrun [FLAGS] COMMAND [ARGS…]",
        "       mydistrun [FLAGS] -m MODULE [ARGS…]",
        "",
    ]
    for flag in FLAGS:
        shown = ", ".join(flag.names)
        if flag.negatable:
            shown = shown.replace("--", "--[no-]", 1)
        lines.append(f"  {shown}{' ' + flag.metavar if flag.metavar else ''}")
        lines.append(f"        {flag.help}")
    return "\n".join(lines)


def suggest(name: str, candidates: Sequence[str]) -> str:
    """`; did you mean X?` for the nearest candidate, or nothing."""
    near = difflib.get_close_matches(name, candidates, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _take_value(flag: Flag, where: str, inline: str | None, rest: list[str]) -> object:
    if flag.convert is None:
        return True if inline is None else convert_value(None, inline, where)
    if inline is None:
        if not rest:
            raise UsageError(f"{where} needs a value: {where} {flag.metavar}")
        inline = rest.pop(0)
    return convert_value(flag.convert, inline, where)


def _store(flag: Flag, value: object, name: str, parsed: ParsedFlags) -> None:
    if flag.repeated:
        listed = parsed.values.setdefault(flag.key, [])
        assert isinstance(listed, list)
        listed.append(value)
    elif flag.convert is not None and parsed.values.get(flag.key, value) != value:
        raise UsageError(f"{name} is given twice with different values; keep one")
    else:
        parsed.values[flag.key] = value


def _parse_negated(name: str, token: str, by_name: dict[str, Flag], parsed: ParsedFlags) -> None:
    positive = by_name.get(name.replace("--no-", "--", 1))
    if (
        name.startswith("--no-")
        and positive is not None
        and positive.negatable
        and name == token.replace("_", "-")
    ):
        parsed.values[positive.key] = False
        return
    known = [name for flag in FLAGS for name in flag.names]
    known += [name.replace("--", "--no-", 1) for name in known if by_name[name].negatable]
    raise UsageError(
        f"unknown flag {shown(token)}{suggest(name, known)} (mydistrun --help lists all)"
    )
