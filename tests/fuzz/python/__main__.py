"""atheris over one target: python -m fuzz.python NAME FOLDER… with libFuzzer's options.

Also --list, which prints the names of all targets, and --seeds=FOLDER, which writes their seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Runs the fuzzer, which ends the process."""
    if sys.argv[1] == "--list" or sys.argv[1].startswith("--seeds="):
        from fuzz.python.all_targets import TARGETS

        for target in TARGETS.values():
            if sys.argv[1] == "--list":
                print(target.name)
                continue
            folder = Path(sys.argv[1].partition("=")[2]) / target.name
            folder.mkdir(parents=True, exist_ok=True)
            for number, seed in enumerate(target.seeds):
                (folder / f"seed-{number}").write_bytes(seed)
        return
    import atheris

    with atheris.instrument_imports(include=["mydist", "yaml", "json", "shlex"]):
        from fuzz.python.all_targets import TARGETS
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
