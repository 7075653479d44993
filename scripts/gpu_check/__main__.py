"""The command; see the package."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import __doc__ as description
from .carried import Carried, take
from .facts import find_gpu, gather
from .plan import ROOT, Scene, plan
from .steps import Results, choose, format_table, is_fine, run_steps


def copy_package(root: Path, target: Path) -> None:
    """What of the package is Python, as an installation has it; what is compiled comes later."""
    compiled = shutil.ignore_patterns("*.so", "lib", "__pycache__")
    shutil.copytree(root / "python", target, ignore=compiled, dirs_exist_ok=True)
    launcher = target / "mydist" / "launcher"
    shutil.copytree(root / "launcher", launcher, ignore=compiled, dirs_exist_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.gpu_check",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="what was brought along")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="steps whose name has it, and what they use"
    )
    parser.add_argument("--minutes", type=float, default=8, help="for all of it [8]")
    parser.add_argument("--commit", default="", help="what this tree is, where git cannot tell")
    parser.add_argument("--tree", type=Path, default=ROOT / "build" / "gpu", help="built in")
    options = parser.parse_args(arguments)
    if options.files and not options.files.is_dir():
        parser.error(f"--files: {options.files} is no folder")
    deadline = time.monotonic() + 60 * options.minutes
    tree = options.tree.resolve()
    carried = Carried(tree / "root", tree / "site")
    brought, broken = take(options.files, carried, tree / "joined") if options.files else ([], [])
    gpu, no_gpu = find_gpu()
    facts = gather(ROOT, gpu or f"none ({no_gpu})", options.commit, carried.environment())
    facts["brought"] = ", ".join([*brought, *broken]) or "nothing"
    results = Results(options.results, tree / "logs", facts)
    has_pytest = facts["pytest"] != "none"
    scene = Scene(carried, tree, results.logs, bool(gpu), has_pytest, options.commit)
    copy_package(ROOT, scene.package)
    outcomes = run_steps(choose(plan(scene), options.only), no_gpu, results, deadline)
    print(format_table(facts, outcomes))
    return 0 if outcomes and is_fine(outcomes) and not broken else 1


if __name__ == "__main__":
    sys.exit(main())
