"""python -m benchmarks: measures every target and says which are met.

Writes everything to build/bench/targets.json, with `--gpu` to gpu.json beside it; `--markdown`
turns that file into the table of docs/performance.md. The machine should have nothing else to do
meanwhile. The last line names what was not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mydist.bench.results import format_table

from .machine import commit, describe_machine
from .results import Results, format_figures
from .suites import ROOT, SUITES, Setting, SuiteFailed
from .targets import GPU_TARGETS, TARGETS, Target
from .verdicts import Verdict, judge, not_measured
from .verdicts import format_table as format_verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 when something was not measured, but not when a target is missed.

    What needs a GPU may be missing for a reason, which the table gives; only a failure counts.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    targets = GPU_TARGETS if options.gpu else TARGETS
    known = {target.row for target in targets}
    if unknown := set(options.only or known) - known:
        found = f"no {','.join(sorted(unknown, key=_order))} {'with' if options.gpu else 'without'}"
        parser.error(f"{found} --gpu, but {','.join(sorted(known, key=_order))}")
    path = options.json or ROOT / "build/bench" / ("gpu.json" if options.gpu else "targets.json")
    if options.markdown:
        document = json.loads(path.read_text(encoding="utf-8"))
        print(f"{document['machine']}; mydist at commit {document['commit']}.\n")
        print(format_verdicts([Verdict(**item) for item in document["verdicts"]]))
        return 0
    chosen = [target for target in targets if not options.only or target.row in options.only]
    setting = Setting(
        options.core, path.parent.resolve(), options.smoke, device=options.gpu or "cuda"
    )
    setting.folder.mkdir(parents=True, exist_ok=True)
    results, failed = _measure(chosen, setting, options.minutes)
    verdicts = judge(chosen, results)
    for name, rows in results.rows.items():
        print(f"{name}:\n{format_table(rows)}\n")
    for name, figures in results.figures.items():
        print(f"{name}:\n{format_figures(figures)}\n")
    if options.gpu == "cpu":
        print("IN HOST MEMORY: this shows that the jobs run, and tells nothing about a GPU")
    print(format_verdicts(verdicts))
    document = {
        "machine": describe_machine(options.gpu == "cuda"),
        "commit": options.commit or commit(),
        "smoke": options.smoke,
        "device": options.gpu or "cpu",
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "rows": {name: [asdict(row) for row in rows] for name, rows in results.rows.items()},
        "figures": results.figures,
        "reasons": results.reasons,
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"all figures: {path}")
    missing = [] if options.smoke or options.gpu else not_measured(verdicts)
    if missing:
        print(f"NOT MEASURED, {len(missing)} of {len(verdicts)}: {'; '.join(missing)}")
    return 1 if failed or missing else 0


def _order(row: str) -> tuple[str, int, str]:
    number = row[1:]
    return row[:1], int(number) if number.isdecimal() else 0, row


def _parser() -> argparse.ArgumentParser:
    rows = sorted({target.row for target in (*TARGETS, *GPU_TARGETS)}, key=_order)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", type=lambda text: text.split(","), metavar="ROWS", help=f"of {', '.join(rows)}"
    )
    parser.add_argument(
        "--gpu",
        nargs="?",
        const="cuda",
        choices=("cuda", "cpu"),
        help="the rows of one GPU instead; cpu: in host memory, which shows that they run",
    )
    parser.add_argument(
        "--smoke", action="store_true", help="run everything as small as can be; measures nothing"
    )
    parser.add_argument(
        "--minutes", type=float, help="what is not measured by then is left out [no limit]"
    )
    parser.add_argument(
        "--json", type=Path, help="[build/bench/targets.json; with --gpu, build/bench/gpu.json]"
    )
    parser.add_argument(
        "--core",
        type=Path,
        default=ROOT / "build/dev/benchmarks/bench_allreduce",
        help="the C++ program",
    )
    parser.add_argument("--commit", help="what this tree is, where git cannot tell")
    parser.add_argument(
        "--markdown", action="store_true", help="measure nothing, print the JSON file as a table"
    )
    return parser


def _measure(
    chosen: Sequence[Target], setting: Setting, minutes: float | None
) -> tuple[Results, bool]:
    """What the suites of the chosen targets found, and whether one failed."""
    results, failed = Results(), False
    end = math.inf if minutes is None else time.monotonic() + minutes * 60
    needed = {target.suite for target in chosen}
    for name in [name for name in SUITES if name in needed]:
        started = time.monotonic()
        left = end - started
        if left <= 0:
            results.reasons[name] = f"the {minutes:g} minutes were over, see --minutes"
            continue
        try:
            limited = replace(setting, timeout_s=min(setting.timeout_s, left))
            SUITES[name](name, limited, results)
        except SuiteFailed as error:
            failed = True
            results.reasons[name] = str(error).splitlines()[0]
            print(f"{name}: {error}", file=sys.stderr, flush=True)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return results, failed


if __name__ == "__main__":
    sys.exit(main())
