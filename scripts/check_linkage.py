"""Check what libmydist_nccl.so needs and shows: it has to load on every machine, beside any torch.

NCCL and the driver are opened at run time and CUDA's runtime is inside, so it may need only
libmydist.so and the system's own libraries; and nobody else may find CUDA's functions in it.

Usage: check_linkage.py LIBRARY [--readelf PROGRAM] [--nm PROGRAM]. Prints one line per violation;
exit code 1 if there is any.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator

from violations import report

SYSTEM = re.compile(r"^(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux.*)\.so\b")
OURS = "libmydist.so"
ENTRY = "mydist_device_plugin_v1"
# Templates of the C++ library, which every C++ library shows.
TEMPLATE = re.compile(r"^_Z(T[ISV]|Z?N)?K?S|^_ZZ?NS|^_ZZ?NKS|^_ZZ?NSt")


def needed(library: str, readelf: str) -> list[str]:
    """The libraries that the library names as needed."""
    text = subprocess.run([readelf, "-d", library], capture_output=True, text=True, check=True)
    return re.findall(r"\(NEEDED\).*\[(.+)\]", text.stdout)


def shown(library: str, nm: str) -> list[str]:
    """The names that the library defines for others."""
    command = [nm, "-D", "--defined-only", library]
    text = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in text.stdout.splitlines() if line.strip()]


def problems(library: str, readelf: str, nm: str) -> Iterator[str]:
    """One line per library that must not be needed and per name that must not be seen."""
    names = needed(library, readelf)
    if OURS not in names:
        yield f"{library} does not need {OURS}; is it a plugin?"
    for name in names:
        if name != OURS and not SYSTEM.match(name):
            yield f"{library} needs {name}; it may need {OURS} and the system's libraries only"
    symbols = shown(library, nm)
    if ENTRY not in symbols:
        yield f"{library} does not export {ENTRY}"
    for symbol in symbols:
        if not symbol.startswith("mydist_") and not TEMPLATE.match(symbol):
            yield f"{library} exports {symbol}; expected names that begin with mydist_ only"


def main(arguments: list[str]) -> int:
    """Check one library."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--readelf", default="readelf")
    parser.add_argument("--nm", default="nm")
    options = parser.parse_args(arguments)
    return report("check_linkage", problems(options.library, options.readelf, options.nm))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
