"""Check for which GPUs libmydist_nccl.so holds code: exactly those that it was built for.

A kernel without code for a GPU fails there at its first launch, or is compiled for seconds from
PTX. What the library holds is read from its fat binaries, of which each source of kernels has one;
where there is NVIDIA's cuobjdump, that has to say the same.

Usage: check_architectures.py LIBRARY --architectures LIST [--readelf PROGRAM] [--cuobjdump
PROGRAM]. LIST is CMAKE_CUDA_ARCHITECTURES with commas: 75-real,90-virtual is code for 75 and PTX
for 90; 80 alone is both. Prints one line per violation; exit code 1 if there is any.
"""

from __future__ import annotations

import argparse
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SECTION = ".nv_fatbin"
MAGIC = 0xBA55ED50
# A fat binary: magic, version, bytes of this header, bytes behind it.
HEADER = struct.Struct("<IHHQ")
# One of its parts: kind, version, bytes of this header, bytes behind it, and further on its GPU.
PART = struct.Struct("<HHIQ12xI")
KINDS = {1: "PTX", 2: "code"}

# How often there is something for a GPU: ("code", 75) or ("PTX", 90).
Holdings = Counter[tuple[str, int]]


def wanted(architectures: str) -> set[tuple[str, int]]:
    """What CMake asks nvcc for. ValueError for what says no number, such as "native"."""
    found: set[tuple[str, int]] = set()
    for name in architectures.split(","):
        match = re.fullmatch(r"(\d+)[af]?(-real|-virtual)?", name)
        if match is None:
            raise ValueError(f"'{name}' is no architecture with a number, such as 90-real")
        if match[2] != "-virtual":
            found.add(("code", int(match[1])))
        if match[2] != "-real":
            found.add(("PTX", int(match[1])))
    return found


def section(library: str, readelf: str) -> bytes:
    """The part of the library that has all fat binaries; empty: there is none."""
    command = [readelf, "-SW", library]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(rf"{re.escape(SECTION)}\s+\S+\s+\S+\s+(\S+)\s+(\S+)", text)
    if match is None:
        return b""
    begin, size = int(match[1], 16), int(match[2], 16)
    return Path(library).read_bytes()[begin : begin + size]


def fat_binaries(content: bytes) -> Iterator[Holdings]:
    """What each of them holds. ValueError for what does not look like one."""
    at = 0
    while at < len(content):
        magic, _, header_bytes, size = HEADER.unpack_from(content, at)
        if magic != MAGIC:
            raise ValueError(f"{SECTION} has no fat binary at byte {at}")
        if header_bytes == 0:
            raise ValueError(f"{SECTION} has a fat binary without a header at byte {at}")
        at += header_bytes
        end = at + size
        holdings: Holdings = Counter()
        while at < end:
            kind, _, header_bytes, size, gpu = PART.unpack_from(content, at)
            if header_bytes + size == 0:  # It would be read for ever.
                raise ValueError(f"{SECTION} has an empty part at byte {at}")
            holdings[KINDS.get(kind, f"kind {kind}"), gpu] += 1
            at += header_bytes + size
        yield holdings
        at += -at % 8


def listed(library: str, cuobjdump: str) -> Holdings:
    """What NVIDIA's own program finds."""
    holdings: Holdings = Counter()
    for kind, option in (("code", "--list-elf"), ("PTX", "--list-ptx")):
        command = [cuobjdump, option, library]
        text = subprocess.run(command, capture_output=True, text=True, check=False)
        holdings.update((kind, int(gpu)) for gpu in re.findall(r"\.sm_(\d+)[af]?\.", text.stdout))
    return holdings


def names(holdings: set[tuple[str, int]]) -> str:
    """For a reader."""
    return ", ".join(f"{kind} for {gpu}" for kind, gpu in sorted(holdings)) or "nothing"


def problems(options: argparse.Namespace) -> Iterator[str]:
    """One line per fat binary that holds too much or too little."""
    expected = wanted(options.architectures)
    together: Holdings = Counter()
    for number, holdings in enumerate(fat_binaries(section(options.library, options.readelf)), 1):
        together += holdings
        where = f"fat binary {number} of {options.library}"
        if missing := expected - set(holdings):
            yield f"{where} lacks {names(missing)}"
        if surplus := set(holdings) - expected:
            yield f"{where} holds {names(surplus)} as well"
    if not together:
        yield f"{options.library} holds no code for GPUs at all; is it the plugin?"
    if options.cuobjdump and (other := listed(options.library, options.cuobjdump)) != together:
        yield f"cuobjdump finds {dict(other)}, this program {dict(together)}; one of them errs"


def main(arguments: list[str]) -> int:
    """Check one library."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--architectures", required=True)
    parser.add_argument("--readelf", default="readelf")
    parser.add_argument("--cuobjdump")
    options = parser.parse_args(arguments)
    try:
        found = list(problems(options))
    except (ValueError, struct.error) as error:
        found = [str(error)]
    for problem in found:
        print(problem)
    print(f"check_architectures: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
