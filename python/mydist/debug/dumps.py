"""The dumps of flight recorders, as csrc/engine/flight_dumper.cc writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
MAX_BYTES = 1 << 24  # Forty times what a full ring takes.
MAX_SIZE = 1 << 16  # Ranks of a job.
# What a rank recorded: of its job, or of the process groups of torch.distributed.
KINDS = {"job": "flight_recorder_rank", "groups": "flight_recorder_groups_rank"}
_FILE = re.compile(rf"({'|'.join(KINDS.values())})(\d+)\.json\Z")
# The ranks may give different numbers of rows to these.
_FREE_ROWS = {"allgather", "alltoall", "gather", "scatter"}
# Errors of one operation on all ranks, after which the job goes on.
_OWN_ERRORS = {"MISMATCH", "INVALID_ARGUMENT", "TYPE_ERROR"}


class DumpError(Exception):
    """The folder has no dump that can be read; the text is one line."""


@dataclass(frozen=True)
class Operation:
    """One record. Times are nanoseconds of the host's monotonic clock; 0: not yet."""

    number: int
    process_set: int
    run: int
    op: str
    name: str
    state: str
    code: str
    dtype: str
    shape: tuple[int, ...]
    dims: int
    reduce: str
    root: int | None
    ranks: tuple[int, ...]
    device: str
    submitted_ns: int
    begun_ns: int
    ended_ns: int

    @property
    def label(self) -> str:
        """As mydist's errors name it: "allreduce 'x'"."""
        return "join" if self.op == "join" else f"{self.op} '{self.name}'"

    @property
    def is_open(self) -> bool:
        """Whether it waits for other ranks, or did when the job failed."""
        if self.state == "failed":
            return self.code not in _OWN_ERRORS
        return self.state != "done"

    @property
    def is_refused(self) -> bool:
        """Whether the ranks disagreed on it."""
        return self.state == "failed" and not self.is_open

    @property
    def agreement(self) -> tuple[object, ...]:
        """Where it is equal, so are the properties()."""
        own = (self.name, self.op, self.dtype, self.shape, self.dims)
        return (*own, self.reduce, self.root, self.device)

    def properties(self) -> dict[str, str]:
        """What all ranks have to agree on."""
        dims = [str(dim) for dim in self.shape]
        if self.op in _FREE_ROWS and dims:
            dims[0] = "*"
        if self.dims > len(dims):
            dims.append("…")
        found = {"operation": self.op, "dtype": self.dtype, "shape": f"[{', '.join(dims)}]"}
        found |= {"reduction": self.reduce, "device": self.device}
        found["root"] = "" if self.root is None else str(self.root)
        if not self.dtype:
            found["shape"] = ""
        return found


@dataclass(frozen=True)
class Dump:
    """What one rank has written."""

    rank: int
    size: int
    host: str
    pid: int
    version: str
    reason: str
    message: str
    wall_ns: int
    monotonic_ns: int
    started_wall_ns: int
    submitted: int
    dropped: int
    process_sets: Mapping[int, tuple[int, ...]]
    group_names: Mapping[int, str]
    operations: tuple[Operation, ...]

    def seconds_ago(self, monotonic_ns: int) -> float:
        """How long before the dump that was."""
        return max(0.0, (self.monotonic_ns - monotonic_ns) / 1e9)

    def wall(self, monotonic_ns: int) -> int:
        """The moment on the wall clock of the host, in nanoseconds."""
        return self.wall_ns - self.monotonic_ns + monotonic_ns


def kinds_in(folder: Path) -> list[str]:
    """Of which KINDS the folder has dumps.

    Raises DumpError when the folder is none, or has none.
    """
    if not folder.is_dir():
        raise DumpError(
            f"there is no folder {str(folder)!r}; expected the one that the ranks have written, "
            "mydist_flight_recorder by default"
        )
    try:
        begins = {m[1] for path in folder.iterdir() if (m := _FILE.match(path.name))}
    except OSError as error:
        raise DumpError(f"cannot read {str(folder)!r}: {error.strerror}") from None
    if not begins:
        raise DumpError(f"{str(folder)!r} has no flight_recorder_rankN.json")
    return [kind for kind, begin in KINDS.items() if begin in begins]


def read_folder(folder: Path, kind: str = "job") -> tuple[list[Dump], list[str]]:
    """The dumps of a kind by rank, and a sentence for each thing that is wrong with one.

    Raises DumpError when the folder is none, or has no dump that can be read.
    """
    if kind not in kinds_in(folder):
        raise DumpError(f"{str(folder)!r} has no {KINDS[kind]}N.json")
    try:
        found = [(m, path) for path in folder.iterdir() if (m := _FILE.match(path.name))]
        numbers = {int(m[2]): p for m, p in found if m[1] == KINDS[kind] and p.is_file()}
    except OSError as error:
        raise DumpError(f"cannot read {str(folder)!r}: {error.strerror}") from None
    dumps: list[Dump] = []
    problems: list[str] = []
    for rank, path in sorted(numbers.items()):
        try:
            dump, problem = read_dump(path)
            if dump.rank != rank:
                raise DumpError(f"it says that it is of rank {dump.rank}")
        except DumpError as error:
            problems.append(f"The dump of rank {rank} is ignored: {error}.")
            continue
        dumps.append(dump)
        if problem:
            problems.append(f"The dump of rank {rank} {problem}.")
    if not dumps:
        raise DumpError(f"{str(folder)!r}: {problems[0]}")
    return dumps, problems


def read_dump(path: Path) -> tuple[Dump, str]:
    """The dump in a file, and what is wrong with it; empty: nothing. Raises DumpError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DumpError(f"it cannot be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise DumpError(f"it has more than {MAX_BYTES} bytes")
    return parse_dump(data)


def parse_dump(data: bytes) -> tuple[Dump, str]:
    """As read_dump, of the bytes of a file."""
    lines = data.decode(errors="replace").splitlines()
    head = _object(lines[0]) if lines else None
    if head is None or "mydist_flight_recorder" not in head:
        raise DumpError("it is not a flight recorder of mydist")
    if head["mydist_flight_recorder"] != FORMAT:
        raise DumpError(
            f"its format is {head['mydist_flight_recorder']!r}, and mydist {head.get('version')} "
            f"wrote it; this program reads format {FORMAT}"
        )
    rows = [_object(line) for line in lines[1:]]
    is_whole = bool(rows) and rows[-1] == {"end": len(rows) - 1}
    try:
        operations = tuple(_operations(rows[:-1] if is_whole else rows))
        return _dump(
            head, operations
        ), "" if is_whole else f"is cut after {len(operations)} records"
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DumpError(f"a field is missing or wrong ({error})") from None


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _operations(rows: Iterable[dict[str, Any] | None]) -> Iterable[Operation]:
    """Up to the first line that is none: there the file was cut."""
    for row in rows:
        if row is None or "n" not in row:
            return
        yield Operation(
            number=int(row["n"]),
            process_set=int(row["set"]),
            run=int(row["run"]),
            op=_shown(row["op"]),
            name=_shown(row["name"]),
            state=_shown(row["state"]),
            code=_shown(row.get("code", "")),
            dtype=_shown(row.get("dtype", "")),
            shape=tuple(int(dim) for dim in row.get("shape", ())),
            dims=int(row.get("dims", 0)),
            reduce=_shown(row.get("reduce", "")),
            root=int(row["root"]) if "root" in row else None,
            ranks=tuple(int(rank) for rank in row.get("ranks", ())),
            device=_shown(row.get("device", "")),
            submitted_ns=int(row["submitted_ns"]),
            begun_ns=int(row["begun_ns"]),
            ended_ns=int(row["ended_ns"]),
        )


def _shown(text: object) -> str:
    """A text that any terminal shows."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def _dump(head: Mapping[str, Any], operations: tuple[Operation, ...]) -> Dump:
    if not 0 <= int(head["rank"]) < int(head["size"]) <= MAX_SIZE:
        raise ValueError(f"rank {head['rank']!r} of {head['size']!r}")
    sets = {int(k): tuple(int(rank) for rank in v) for k, v in head["process_sets"].items()}
    names = {int(k): _shown(v) for k, v in head.get("group_names", {}).items()}
    return Dump(
        rank=int(head["rank"]),
        size=int(head["size"]),
        host=_shown(head["host"]),
        pid=int(head["pid"]),
        version=_shown(head["version"]),
        reason=_shown(head["reason"]),
        message="\n".join(map(_shown, str(head["message"]).split("\n"))),
        wall_ns=int(head["wall_ns"]),
        monotonic_ns=int(head["monotonic_ns"]),
        started_wall_ns=int(head["started_wall_ns"]),
        submitted=int(head["submitted"]),
        dropped=int(head["dropped"]),
        process_sets=sets,
        group_names=names,
        operations=operations,
    )
