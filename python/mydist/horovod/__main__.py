"""`python -m mydist.horovod script.py …` runs a script that imports `horovod`, as it is.

It starts no ranks: the launcher of the job does, such as mydistrun, torchrun or mpirun.
"""

from __future__ import annotations

import os
import sys

from .environment import with_import_path


def main() -> int:
    """Becomes the Python that runs the script. Returns 2 without one."""
    if len(sys.argv) < 2:
        print(
            "usage: python -m mydist.horovod script.py [its arguments], or -m module in place of "
            "the script",
            file=sys.stderr,
        )
        return 2
    # A new program: workers that the script spawns find its functions in __main__.
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], with_import_path(os.environ))


if __name__ == "__main__":
    sys.exit(main())
