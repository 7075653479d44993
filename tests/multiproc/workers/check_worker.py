"""Runs the checks of a suite on this rank and writes one JSON line per check.

Started by mydistrun: check_worker.py SUITE all|few RESULT_DIR
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

from multiproc.pretended_hosts import pretend_hosts
from multiproc.registry import NotHereError, checks_of

import mydist as md


def main() -> None:
    suite, every_case, folder = sys.argv[1], sys.argv[2] == "all", Path(sys.argv[3])
    pretend_hosts()
    if cores := os.environ.get("TEST_CORES"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    md.init()
    with open(folder / f"rank{md.rank()}.jsonl", "w", encoding="utf-8") as results:
        for check in checks_of(suite, every_case):
            if check.min_size > md.size():
                continue
            started, text, skipped = time.monotonic(), "", ""
            try:
                check.function()
            except NotHereError as reason:
                skipped = str(reason)
            except Exception:
                text = traceback.format_exc()
            seconds = time.monotonic() - started
            row = {"check": check.name, "traceback": text, "skipped": skipped, "seconds": seconds}
            results.write(json.dumps(row) + "\n")
            results.flush()
    md.shutdown()


if __name__ == "__main__":
    main()
