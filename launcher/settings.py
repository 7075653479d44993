"""Merges command line, environment, config file and defaults into one JobSpec.

Precedence: command line > environment > config file > default.
"""

from __future__ import annotations

import os
import re
import reprlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from mydist.launcher.bounded_file import read_bounded
from mydist.launcher.elastic.options import elastic_hosts, elastic_options
from mydist.launcher.environment import BUILD_VARIABLES, RESERVED_VARIABLES
from mydist.launcher.errors import UsageError
from mydist.launcher.flags import FLAGS, REMOVED_FLAGS, Flag, convert_value, suggest
from mydist.launcher.hosts import (
    Host,
    parse_host_list,
    parse_hostfile,
    parse_server_hosts,
    require_slots,
)
from mydist.launcher.job_spec import JobSpec, OutputOptions, SshOptions
from mydist.launcher.value_text import Convert, choice, integer, path, row_name, seconds

# Enough for a list of thousands of hosts; a larger one would keep the parser busy for long.
MAX_CONFIG_BYTES = 1 << 18
# Aliases in a config file make a value of a few bytes endless when it is written out.
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 1
_PREFIX = "MYDIST_"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# What the MYDIST_* settings may be: a bad one is one line of mydistrun, not one error per rank.
# docs/configuration.md lists them; csrc/config/config.cc reads them in the ranks. None: a switch.
_CONVERTERS: Mapping[str, Convert | None] = {
    **{flag.variable: flag.convert for flag in FLAGS if flag.variable is not None},
    "MYDIST_CONTROLLER": row_name,
    "MYDIST_COORDINATOR_RADIX": integer(2, 1024),
    "MYDIST_NCCL_LIBRARY": path,
    "MYDIST_PS_IN_FLIGHT_MB": integer(1, 1024),
    "MYDIST_PS_PIECE_KB": integer(4, 16384),
    "MYDIST_PS_THREADS": integer(0, 1024),
    "MYDIST_SERVERS": integer(1, 1024),
    "MYDIST_SHUTDOWN_SECONDS": seconds(0, 1e6),
    "MYDIST_TIMEOUT_SECONDS": seconds(0.1, 1e6),
}
# Only the ranks know what an extension adds to these.
_OUR_ROWS: Mapping[str, Convert] = {
    "MYDIST_ALGORITHM": choice(("auto", "shared_memory", "hierarchical", "flat")),
    "MYDIST_CONTROLLER": choice(("auto", "local", "mpi", "gloo")),
}
# Relative to the folder of mydistrun, wherever a rank runs.
_PATHS = ("timeline-filename", "flight-recorder-dir")
SETTINGS = tuple(sorted(_CONVERTERS))
_NO_SETTINGS = frozenset((*RESERVED_VARIABLES, *BUILD_VARIABLES, "MYDIST_FAILPOINT"))


def make_job_spec(
    given: Mapping[str, object], command: Sequence[str], environment: Mapping[str, str]
) -> JobSpec:
    """Builds the JobSpec from parsed flags, the user's command and the launcher's environment.

    Raises UsageError, one line, naming what was got, what was expected and where.
    """
    file_path = given.get("config-file")
    from_file = read_config_file(cast(str, file_path)) if file_path else {}
    _drop_overridden(from_file, given)
    merged: dict[str, Any] = {**from_file, **given}
    exported = _exported(merged.get("x", []), environment)
    tunables = _tunables(given, from_file, environment)
    _check_settings(environment, tunables, exported)
    controller = _controller(given, from_file, environment)
    hosts, num_proc = _hosts_and_size(merged, environment)
    hosts = elastic_hosts(merged, hosts)
    if all(host.is_local() for host in hosts):
        _require_plugins(environment, tunables, exported)
    _check_exported_controller(exported, controller)
    elastic = elastic_options(merged, controller, hosts)
    servers, server_hosts = _servers(merged, controller, hosts)
    module = merged.get("m")
    if module is None and not command:
        raise UsageError(
            "no command given; expected mydistrun [FLAGS] COMMAND [ARGS…], such as "
            "mydistrun -np 2 python train.py"
        )
    directory = merged.get("output-filename")
    return JobSpec(
        command=tuple(command),
        module=module,
        num_proc=num_proc,
        hosts=hosts,
        hosts_given="hosts" in merged or "hostfile" in merged,
        controller=controller,
        tunables=tunables,
        exported=exported,
        network_interfaces=_network_interfaces(tunables, environment),
        ssh=_ssh_options(merged),
        output=OutputOptions(
            Path(os.path.abspath(directory)) if directory else None,
            bool(merged.get("prefix-output-with-timestamp")),
        ),
        stop_timeout=merged.get("stop-timeout", JobSpec.stop_timeout),
        mpi_args=merged.get("mpi-args", ()),
        servers=servers,
        server_hosts=server_hosts,
        elastic=elastic,
        verbose=bool(merged.get("verbose")),
        dry_run=bool(merged.get("dry-run")),
        warnings=(
            *(
                f"--{flag.key} has been removed: {flag.help}"
                for flag in REMOVED_FLAGS
                if flag.key in merged
            ),
            *_unknown_variables(environment, tunables, exported),
        ),
    )


def load_config_file(path: str) -> dict[object, object]:
    """Reads a YAML mapping.

    Raises UsageError naming the file, or the missing PyYAML package.
    """
    try:
        import yaml
    except ImportError:
        raise UsageError(
            "--config-file needs the package PyYAML; install it with: pip install PyYAML"
        ) from None
    try:
        loaded = yaml.safe_load(read_bounded(path, "--config-file", MAX_CONFIG_BYTES))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"--config-file {path!r}: not valid YAML: {reason}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UsageError(
            f"--config-file {path!r}: got a {type(loaded).__name__}, "
            f"expected a mapping such as 'num-proc: 4'"
        )
    return loaded


def read_config_file(path: str) -> dict[str, object]:
    """Reads a YAML mapping of flag names to values, checked like the flags themselves.

    Raises UsageError naming the file and the key, or the missing PyYAML package.
    """
    return dict(_config_item(path, key, value) for key, value in load_config_file(path).items())


def _config_item(path: str, key: object, value: object) -> tuple[str, object]:
    flags = {flag.key: flag for flag in FLAGS if not flag.command_line_only}
    name = str(key).replace("_", "-")
    if any(name == flag.key for flag in REMOVED_FLAGS):
        return name, value
    flag = flags.get(name)
    if flag is None:
        raise UsageError(f"--config-file {path!r}: unknown key {key!r}{suggest(name, list(flags))}")
    shown = f"--config-file {path!r}: {key}"
    if isinstance(value, bool) != (flag.convert is None) or isinstance(value, dict | list | None):
        expected = "true or false" if flag.convert is None else f"a value {flag.metavar}"
        raise UsageError(f"{shown}: got {_BRIEF.repr(value)}, expected {expected}")
    if flag.convert is None:
        return name, value
    return name, convert_value(flag.convert, str(value), shown)


def default_num_proc(environment: Mapping[str, str]) -> int:
    """The number of local GPUs as nvidia-smi lists them, else of usable cores."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program:
        try:
            listed = subprocess.run(
                [program, "-L"], capture_output=True, timeout=10, check=False
            ).stdout
            gpu_count = sum(line.startswith(b"GPU ") for line in listed.splitlines())
        except (OSError, subprocess.TimeoutExpired):
            gpu_count = 0
        if gpu_count:
            return gpu_count
    return len(os.sched_getaffinity(0))


def _drop_overridden(from_file: dict[str, object], given: Mapping[str, object]) -> None:
    """A choice on the command line also silences its alternative in the file."""
    for pair in ({"mpi", "gloo"}, {"hosts", "hostfile"}):
        if pair & given.keys():
            for key in pair - given.keys():
                from_file.pop(key, None)


def _controller(
    given: Mapping[str, object], from_file: Mapping[str, object], environment: Mapping[str, str]
) -> str | None:
    by_variable = environment.get("MYDIST_CONTROLLER")
    chosen = _controller_flag(given) or by_variable or _controller_flag(from_file)
    return None if chosen == "auto" else chosen


def _controller_flag(source: Mapping[str, object]) -> str | None:
    chosen = [name for name in ("mpi", "gloo") if source.get(name)]
    if len(chosen) > 1:
        raise UsageError("--mpi and --gloo exclude each other; give one or none of them")
    return chosen[0] if chosen else None


def _hosts_and_size(
    merged: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[tuple[Host, ...], int]:
    if "hosts" in merged and "hostfile" in merged:
        raise UsageError("-H and --hostfile exclude each other; give one of them")
    if "hosts" in merged:
        hosts = parse_host_list(merged["hosts"])
    elif "hostfile" in merged:
        hosts = parse_hostfile(merged["hostfile"])
    else:
        num_proc = merged.get("num-proc") or default_num_proc(environment)
        return (Host("localhost", num_proc),), num_proc
    num_proc = merged.get("num-proc") or sum(host.slots for host in hosts)
    require_slots(hosts, num_proc)
    return hosts, num_proc


def _tunables(
    given: Mapping[str, object], from_file: Mapping[str, object], environment: Mapping[str, str]
) -> dict[str, str]:
    """What flag or config file give; what the environment gives reaches the ranks by itself."""
    result = {}
    for flag in FLAGS:
        if flag.variable is None:
            continue
        inherited = environment.get(flag.variable, "")
        if flag.key in given:
            result[flag.variable] = _variable_text(flag, given[flag.key])
        elif inherited:
            if flag.key in _PATHS:
                result[flag.variable] = os.path.abspath(inherited)
        elif flag.key in from_file:
            result[flag.variable] = _variable_text(flag, from_file[flag.key])
    return result


def check_setting(variable: str, text: str, where: str, is_extended: bool) -> None:
    """Raises UsageError when the ranks would refuse the text; `where` says where it was found.

    An empty text counts as unset. A variable that is not in SETTINGS may be of an extension.
    """
    if not text or variable not in _CONVERTERS:
        return
    if variable in _OUR_ROWS and not is_extended:
        convert_value(_OUR_ROWS[variable], text, where)
    else:
        convert_value(_CONVERTERS[variable], text, where)


def _check_settings(
    environment: Mapping[str, str],
    tunables: Mapping[str, str],
    exported: Mapping[str, str | None],
) -> None:
    """Checks the value of each setting that the ranks will see."""
    sources = (environment, tunables, exported)
    is_extended = any(source.get("MYDIST_PLUGINS") for source in sources)
    for variable in SETTINGS:
        if (text := exported.get(variable)) is not None:
            check_setting(variable, text, f"-x {variable}", is_extended)
        else:
            text = tunables.get(variable) or environment.get(variable, "")
            check_setting(variable, text, variable, is_extended)


def _require_plugins(*sources: Mapping[str, str | None]) -> None:
    """The files that the ranks of this host will load are there."""
    named = [source["MYDIST_PLUGINS"] for source in reversed(sources) if "MYDIST_PLUGINS" in source]
    for plugin in (named[0] or "").split(":") if named else []:
        # Without a folder, the dynamic linker looks for it.
        if "/" in plugin and not os.path.isfile(plugin):
            raise UsageError(f"MYDIST_PLUGINS: {plugin!r} is not a file")


def _unknown_variables(
    environment: Mapping[str, str],
    tunables: Mapping[str, str],
    exported: Mapping[str, str | None],
) -> list[str]:
    """A warning for each MYDIST_* variable that no rank reads.

    Only the ranks know the settings of an extension. With one, rank 0 warns in place of us.
    """
    if any(source.get("MYDIST_PLUGINS") for source in (environment, tunables, exported)):
        return []
    removed = {f"{_PREFIX}{flag.key.replace('-', '_').upper()}": flag for flag in REMOVED_FLAGS}
    warnings = []
    for name in sorted({*environment, *exported}):
        if not name.startswith(_PREFIX) or name in (*SETTINGS, *_NO_SETTINGS):
            continue
        if name in removed:
            warnings.append(f"{name} is set but has been removed: {removed[name].help}")
        else:
            known = [setting.removeprefix(_PREFIX) for setting in SETTINGS]
            near = suggest(name.removeprefix(_PREFIX), known).replace("mean ", f"mean {_PREFIX}")
            warnings.append(f"{name} is set, but mydist has no such setting{near}")
    return warnings


def _check_exported_controller(exported: Mapping[str, str | None], controller: str | None) -> None:
    """What starts the ranks cannot be chosen by a variable that only they see."""
    value = exported.get("MYDIST_CONTROLLER")
    if value not in (None, "", "auto") and (value == "mpi") != (controller == "mpi"):
        wanted = "--mpi" if value == "mpi" else "--gloo"
        raise UsageError(
            f"-x MYDIST_CONTROLLER={value}: mydistrun itself needs this setting; give {wanted} "
            f"or export MYDIST_CONTROLLER"
        )


def _servers(
    merged: Mapping[str, Any], controller: str | None, hosts: tuple[Host, ...]
) -> tuple[int, tuple[Host, ...]]:
    """How many server processes the job has, and the hosts that are named for them."""
    count, named = merged.get("servers"), merged.get("server-hosts")
    if controller == "mpi":
        if count is not None or named is not None:
            flag = "--servers" if count is not None else "--server-hosts"
            raise UsageError(
                f"{flag}: mpirun starts ranks only; leave --mpi out, or export MYDIST_SERVERS in "
                f"place of the flag. Then threads of the first ranks are the servers"
            )
        return 0, ()
    server_hosts = parse_server_hosts(named, hosts) if named is not None else ()
    return len(server_hosts) if count is None else count, server_hosts


def _variable_text(flag: Flag, value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return f"{value:.15g}"
    return os.path.abspath(str(value)) if flag.key in _PATHS else str(value)


def _network_interfaces(
    tunables: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Those of the launcher itself: the ranks', if they are told any."""
    variable = "MYDIST_NETWORK_INTERFACES"
    text = tunables.get(variable) or environment.get(variable)
    names = convert_value(_CONVERTERS[variable], text, variable) if text else ()
    return cast("tuple[str, ...]", names)


def _exported(items: Sequence[str], environment: Mapping[str, str]) -> dict[str, str | None]:
    result: dict[str, str | None] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not _VARIABLE.match(name):
            raise UsageError(f"-x {name!r}: not a variable name; expected NAME or NAME=VALUE")
        if name in RESERVED_VARIABLES:
            raise UsageError(f"-x {name}: mydistrun sets this variable itself; remove it")
        if not equals and name not in environment:
            raise UsageError(f"-x {name}: not set here; export it first or give -x {name}=VALUE")
        if name in result:
            raise UsageError(f"-x {name}: given twice; keep one of them")
        result[name] = value if equals else None
    return result


def _ssh_options(merged: Mapping[str, Any]) -> SshOptions:
    identity = merged.get("ssh-identity-file")
    if identity is not None and not os.path.isfile(identity):
        raise UsageError(f"-i {identity!r}: no such file; expected an ssh private key")
    return SshOptions(
        port=merged.get("ssh-port"),
        identity_file=os.path.abspath(identity) if identity else None,
        extra_args=merged.get("ssh-args", ()),
        remote_python=merged.get("remote-python", ""),
        start_timeout=merged.get("start-timeout", SshOptions.start_timeout),
        host_timeout=merged.get("host-timeout", SshOptions.host_timeout),
        loopback_too=bool(merged.get("ssh-local")),
    )
