"""Print the slowest tests, and how all of them ended, from the reports of the test runners.

Usage: test_report.py [--slowest N] REPORT...
A report has one JSON line per test: name, result (passed, failed, skipped), seconds. The last line
is "N passed, N failed, N skipped"; exit code 1 if a test failed or no report names one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path


def read(paths: list[Path]) -> list[tuple[str, str, float]]:
    """(name, result, seconds) of every test of all reports."""
    rows = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows.append((str(row["name"]), str(row["result"]), float(row["seconds"])))
    return rows


def main() -> int:
    """Print the table and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--slowest", type=int, default=30)
    arguments = parser.parse_args()
    rows = read([path for path in arguments.reports if path.is_file()])
    slowest = sorted(rows, key=lambda row: -row[2])[: arguments.slowest]
    print(f"The {len(slowest)} slowest checks:")
    for name, _, seconds in slowest:
        print(f"{seconds:8.1f} s  {name}")
    counts = Counter(result for _, result, _ in rows)
    failed = counts["failed"]
    print(f"{counts['passed']} passed, {failed} failed, {counts['skipped']} skipped")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
