"""`mydistrun --horovod`: horovodrun's flags, its config file, and `import horovod` in the ranks.

Flags that both launchers have go through. Others become ours, or have no effect here: there is no
cycle to tune.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mydist.job.horovod_path import OF_A_RANK, import_path
from mydist.launcher.errors import UsageError
from mydist.launcher.flags import FLAGS
from mydist.launcher.settings import load_config_file

__all__ = ["translated"]

_FLAG = "--horovod"
# A job that starts in a rank of another one has these of that rank.
_OF_A_RANK = {f"HOROVOD_{name}" for name in OF_A_RANK}


@dataclass(frozen=True)
class Row:
    """A flag of horovodrun that mydistrun lacks.

    Attributes:
        names: its spellings.
        values: how many values follow it.
        ours: what stands for it, with {} for the value; nothing: it has no effect.
        obstacle: why it cannot be served; a part of a sentence.
    """

    names: tuple[str, ...]
    values: int = 0
    ours: tuple[str, ...] = ()
    obstacle: str = ""


def _rows(names: str, values: int = 0, ours: str = "", obstacle: str = "") -> list[Row]:
    return [Row(tuple(n.split("=")), values, tuple(ours.split()), obstacle) for n in names.split()]


ROWS: tuple[Row, ...] = (
    *_rows("-v", ours="--version"),
    *_rows("-cb", ours="--check-build"),
    *_rows("-prefix-timestamp", ours="--prefix-output-with-timestamp"),
    *_rows("-hostfile", 1, "--hostfile {}"),
    *_rows("--network-interface", 1, "--network-interfaces {}"),
    *_rows("--disable-cache", ours="--cache-capacity 0"),
    *_rows("--no-stall-check", ours="--stall-check-warning-time-seconds 0"),
    *_rows("--gloo-timeout-seconds", 1, "-x MYDIST_TIMEOUT_SECONDS={}"),
    *_rows(
        "--hierarchical-allgather --no-hierarchical-allgather --torus-allreduce "
        "--no-torus-allreduce --autotune --no-autotune --no-timeline-mark-cycles --stall-check "
        "--mpi-threads-disable --no-mpi-threads-disable --tcp --log-with-timestamp "
        "--log-without-timestamp --log-hide-timestamp --no-log-hide-timestamp"
    ),
    *_rows(
        "--cycle-time-ms --autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample "
        "--autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --binding-args "
        "--num-nccl-streams --thread-affinity",
        1,
    ),
    *_rows("--min-num-proc", 1, "--min-np {}"),
    *_rows("--max-num-proc", 1, "--max-np {}"),
    *_rows("--blacklist-cooldown-range", 2, "--blacklist-cooldown-range {},{}"),
    *_rows("--jsrun", obstacle="is for jsrun of LSF, which mydist does not use; leave it out"),
)
_BY_NAME = {name: row for row in ROWS for name in row.names}
_VALUES = {name: flag.convert is not None for flag in FLAGS for name in flag.names}

_CONTROLLERS = ("gloo", "mpi")
_MAKE_ELASTIC = {"--min-np", "--max-np", "--host-discovery-script"}

# Where Horovod's config file has what a flag says.
_IN_FILE: dict[str, dict[str, str]] = {
    "params": {
        "fusion_threshold_mb": "--fusion-threshold-mb",
        "cache_capacity": "--cache-capacity",
        "hierarchical_allreduce": "--hierarchical-allreduce",
    },
    "timeline": {"filename": "--timeline-filename", "mark_cycles": "--timeline-mark-cycles"},
    "stall_check": {
        "warning_time_seconds": "--stall-check-warning-time-seconds",
        "shutdown_time_seconds": "--stall-check-shutdown-time-seconds",
    },
    "library_options": {"gloo_timeout_seconds": "--gloo-timeout-seconds"},
    "logging": {"level": "--log-level"},
}


def translated(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], Mapping[str, str]]:
    """The arguments as mydistrun takes them, and the environment that the ranks get.

    Both stay as they are without `--horovod`.

    Raises UsageError, one line, for a flag that cannot be served, and where the path of the
    installation cannot stand in PYTHONPATH.
    """
    options, command = _split(arguments)
    if (_FLAG,) not in options:
        return list(arguments), environment
    found = [part for option in options for part in _ours(option)]
    given = {token.partition("=")[0] for token in found}
    if given & {f"--{name}" for name in _CONTROLLERS}:  # Then the file does not choose.
        given |= {f"--{name}" for name in _CONTROLLERS}
    files = [value for option in options for value in _config_files(option)]
    from_files = [
        part
        for path in files
        for option in _flags_of_file(path)
        if option[0] not in given
        for part in _ours(option)
    ]
    try:
        with_path = {**environment, "PYTHONPATH": import_path(environment)}
    except ValueError as error:
        raise UsageError(f"{_FLAG}: {error}") from None
    settings = (name for name in environment if name.startswith("HOROVOD_"))
    exported = ["PYTHONPATH", *(name for name in settings if name not in _OF_A_RANK)]
    if given & _MAKE_ELASTIC:  # Then Horovod's optimizer reduces the gradients of one rank, too.
        exported.append("HOROVOD_ELASTIC=1")
    passed_on = [part for name in exported for part in ("-x", name)]
    return [*from_files, *found, *passed_on, *command], with_path


def _split(arguments: Sequence[str]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The options, each with its values, and what follows them."""
    options: list[tuple[str, ...]] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--", "-m"):
        name, equals, inline = rest.pop(0).partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        count = _BY_NAME[name].values if name in _BY_NAME else int(_VALUES.get(name, False))
        values = [inline] if equals else rest[:count]
        if not equals:
            rest = rest[count:]
        options.append((name, *values))
    return options, rest


def _ours(option: tuple[str, ...]) -> Iterator[str]:
    """The arguments of mydistrun that stand for an option."""
    name, *values = option
    row = _BY_NAME.get(name)
    if name in (_FLAG, "--config-file"):
        return
    if row is None:
        yield name
        # Horovod's levels are in capitals, and its highest is FATAL.
        is_level = name == "--log-level"
        yield from (v.lower().replace("fatal", "error") if is_level else v for v in values)
        return
    if row.obstacle:
        raise UsageError(f"--horovod: {name} {row.obstacle}")
    if len(values) < row.values:
        raise UsageError(f"--horovod: {name} needs a value")
    yield from (part.format(*values) for part in row.ours)


def _config_files(option: tuple[str, ...]) -> Sequence[str]:
    return option[1:] if option[0] == "--config-file" else ()


def _flags_of_file(path: str) -> Iterator[tuple[str, ...]]:
    """The options that Horovod's nested config file stands for; other sections have no effect."""
    loaded = load_config_file(path)
    if controller := loaded.get("controller"):
        if str(controller).lower() not in _CONTROLLERS:
            raise UsageError(
                f"--config-file {path!r}: controller is {controller!r}, expected gloo or mpi"
            )
        yield (f"--{str(controller).lower()}",)
    for section, keys in _IN_FILE.items():
        entries = loaded.get(section) or {}
        if not isinstance(entries, dict):
            raise UsageError(f"--config-file {path!r}: {section} has to be a mapping")
        if section == "stall_check" and entries.get("enabled") is False:
            yield ("--no-stall-check",)
            continue
        for key, flag in keys.items():
            value = entries.get(key)
            if value is True:
                yield (flag,)
            elif value is False and flag == "--hierarchical-allreduce":
                yield ("--no-hierarchical-allreduce",)
            elif value is not None and value is not False:
                yield (flag, str(value))
