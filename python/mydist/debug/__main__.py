"""The command: python -m mydist.debug DIR, the folder with the dumps of all ranks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mydist.debug.dumps import DumpError, kinds_in, read_folder
from mydist.debug.verdict import verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the verdict; returns 0, or 2 after one line about a folder without dumps."""
    parser = argparse.ArgumentParser(
        prog="python -m mydist.debug",
        description="Compares the flight recorders of all ranks and says what the job waits for.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="with flight_recorder_rankN.json")
    folder = parser.parse_args(arguments).folder
    try:
        verdicts = {kind: verdict(*read_folder(folder, kind)) for kind in kinds_in(folder)}
    except DumpError as error:
        print(f"mydist.debug: {error}", file=sys.stderr)
        return 2
    try:
        for kind, text in verdicts.items():
            if kind == "groups":
                print("\n" * (len(verdicts) - 1) + "The process groups of torch.distributed:")
            print(text, flush=True)
    except BrokenPipeError:  # As of `| head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
