"""Check that code for newer CPUs runs on no other: AVX stays in the kernels that ask for it.

The kernels of csrc/kernels/simd are built several times with different flags. A function of theirs
that the linker took for the rest of the library would crash elsewhere; and a fused multiply-add
rounds once where the other builds round twice. So: no AVX instruction outside the namespaces
mydist::simd::avx2 and mydist::simd::avx512 and the clones of loops that csrc/kernels/loop.h asks
for, and no fused multiply-add anywhere.

Usage: check_instructions.py LIBRARY... Prints one line per violation; exit code 1 if there is any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator

from violations import report

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\t([a-z][a-z0-9]*)")
HOME = re.compile(r"mydist::simd::(avx2|avx512)::|\[clone \.(avx2|avx512)f?\b")
FUSED = re.compile(r"^vfn?m(add|sub)")
# All names of AVX instructions begin with v; these few others do as well.
NOT_AVX = {"verr", "verw"}


def home_of(function: str) -> str:
    """What newer CPU a function is built for: avx2, avx512, or none."""
    match = HOME.search(function)
    return match.group(1) or match.group(2) if match else ""


def problems(lines: Iterable[str]) -> Iterator[str]:
    """Violations in the output of objdump, one for each function and kind."""
    function, home, said = "", "", set[str]()
    for line in lines:
        if match := FUNCTION.match(line):
            function, home, said = match.group(1), home_of(match.group(1)), set()
        elif match := INSTRUCTION.match(line):
            name = match.group(1)
            if FUSED.match(name) and "fused" not in said:
                said.add("fused")
                yield f"{function}: {name} rounds once; expected a product and a sum"
            if name.startswith("v") and name not in NOT_AVX and not home and "avx" not in said:
                said.add("avx")
                yield f"{function}: {name} is AVX; expected it in mydist::simd::avx* or a clone"


def main(arguments: list[str]) -> int:
    """Check the libraries that `arguments` name."""
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as objdump:
        assert objdump.stdout is not None
        code = report("check_instructions", problems(objdump.stdout))
    return code or int(objdump.returncode != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
