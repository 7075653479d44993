#!/usr/bin/env python3
"""Builds mydist from this tree, runs what needs a GPU, and prints a short table last.

    scripts/gpu_check.py RESULTS [--files FOLDER] [--minutes 8] [--commit TEXT]

Needs no network. Full logs and results.json go to the folder RESULTS. Python with torch (the one
that runs this) and its headers (python3-dev), CMake, Ninja, a C++20 compiler and nvcc have to be
there; what else is missing is taken from FOLDER, if it holds it:

    *.deb   libgtest-dev, libgmock-dev, googletest: the C++ tests
            libgloo-dev, libgloo0: the Gloo backend, without which nobody can pretend to be on
            two hosts: tests are left out, and row G4 has shared memory between its ranks
            openmpi-bin, libopenmpi-dev, libopenmpi3 and what they depend on: the MPI backend
    *.whl   nvidia-nccl-cu13: an NCCL other than torch's, which the tests in Python use then
            pytest, iniconfig, packaging, pluggy: the tests in Python

A file too large to be brought in one go may come in pieces, as `split -d` makes them
(FILE.part00, FILE.part01, …). Exit code 1 when something failed or time ran out; where there is no
GPU, everything is built, and what needs one is skipped with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREE = ROOT / "build" / "gpu"
PACKAGE = TREE / "package"  # On Python's path while the tests in Python run.
PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "FAILED", "skipped", "NOT RUN"
# Of bench_convert's table: G1 is the slowest of them.
JUDGED_CONVERSIONS = ("pack", "pack, × 1/8", "pack to float16, × 1/8")
TELL_TORCH = """
import torch
nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "unknown"
print(f"{torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}")
"""
# Rows of docs/performance.md that need what is not there yet.
UNMEASURED = {
    "G2": "gradients are not registered with NCCL (docs/decisions/0013-gpu.md); 0 packed in tests",
}
# Rows of benchmarks/targets.py, with what a slow machine may take in seconds.
BENCHMARKS = {"G4": 40, "G5": 75, "G6": 60}


@dataclass
class Step:
    """One line of the table. `needs_gpu`: skipped without one. `reads` tells what came of it,
    or raises ValueError with what is wrong although the exit code is 0. `limit_s`: at most."""

    name: str
    command: Sequence[str]
    needs_gpu: bool = True
    reads: Callable[[str], str] = lambda output: ""
    environment: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 240


@dataclass
class Outcome:
    """What became of a step: one of the words above, seconds, and a few more words."""

    name: str
    verdict: str
    seconds: float = 0.0
    detail: str = ""


def join_pieces(folder: Path) -> list[Path]:
    """Puts files together that came in pieces; returns all files of the folder."""
    for first in sorted(folder.glob("*.part00")):
        whole = first.with_suffix("")
        with whole.open("wb") as target:
            for piece in sorted(folder.glob(f"{whole.name}.part*")):
                target.write(piece.read_bytes())
    return sorted(path for path in folder.iterdir() if not re.search(r"\.part\d+$", path.name))


def unpack(files: Iterable[Path], root: Path, site: Path) -> list[str]:
    """Debian packages below `root`, wheels into `site`; the names of both."""
    names = []
    for path in files:
        if path.suffix == ".deb":
            root.mkdir(parents=True, exist_ok=True)
            subprocess.run(["dpkg-deb", "-x", str(path), str(root)], check=True)
        elif path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(site)
        else:
            continue
        names.append(path.name)
    return names


def copy_package(root: Path, target: Path) -> None:
    """What of the package is Python, as an installation has it; what is compiled comes later."""
    compiled = shutil.ignore_patterns("*.so", "lib", "__pycache__")
    shutil.copytree(root / "python", target, ignore=compiled, dirs_exist_ok=True)
    launcher = target / "mydist" / "launcher"
    shutil.copytree(root / "launcher", launcher, ignore=compiled, dirs_exist_ok=True)


def first_line(command: Sequence[str], pattern: str = ".+") -> str:
    """Of its output, what matches first; empty where it cannot be run."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    found = re.search(pattern, run.stdout)
    return found[0] if found and run.returncode == 0 else ""


def find_gpu() -> tuple[str, str]:
    """The GPU's name and driver, or "" and why there is none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        return "", "no NVIDIA driver: nvidia-smi is not there"
    asked = subprocess.run(query, capture_output=True, text=True, check=False)
    answer = (asked.stdout or asked.stderr).strip().splitlines()
    if asked.returncode != 0 or not answer:
        return "", f"nvidia-smi: {answer[0] if answer else asked.returncode}"
    return answer[0], ""


def count_tests(report: Path) -> str:
    """CTest's, GoogleTest's or pytest's results in a few words."""
    root = ElementTree.parse(report).getroot()
    suite = root if root.get("tests") else root[0]  # pytest has one inside.
    total, failed, errors, skipped = (
        int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
    )
    failed += errors
    return f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped"


def read_shared_tests(report: Path) -> str:
    """All of them, and G7: each collective of ranks that share the GPU over NCCL, and that it was
    NCCL."""
    over_nccl = r"(every_collective_is_right|job_is_right|path_is_the_one_that_was_asked_for)\[NCCL"
    cases = [
        case
        for case in ElementTree.parse(report).getroot().iter("testcase")
        if re.search(over_nccl, case.get("name", ""))
    ]
    bad = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    reasons = [skip.get("message", "") for case in cases for skip in case.iter("skipped")]
    passed = len(cases) - bad - len(reasons)
    verdict = "missed" if bad else "met" if passed else f"not measured: {reasons[:1]}"
    return f"{count_tests(report)}; G7: {passed} passed, {bad} failed: {verdict}"


def read_verdicts(path: Path) -> str:
    """What `python -m benchmarks --gpu` has written, in a few words for each figure."""
    words = []
    for verdict in json.loads(path.read_text(encoding="utf-8"))["verdicts"]:
        value, interval = verdict["measured"], verdict["interval"]
        figure = "-" if value is None else f"{value:.4g} {verdict['unit']}".rstrip()
        figure += "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
        reason = f" ({verdict['reason']})" if verdict["reason"] else ""
        words.append(f"{verdict['what']}: {figure}, {verdict['verdict']}{reason}")
    return "; ".join(words)


def benchmark(row: str, seconds: float, results: Path, environment: Mapping[str, str]) -> Step:
    """The step for one row of benchmarks/targets.py."""
    path = results / f"{row}.json"
    limit = ["--minutes", f"{seconds / 60:.2f}", "--json", str(path)]
    return Step(
        f"benchmark {row}",
        [sys.executable, "-m", "benchmarks", "--gpu", "--only", row, *limit],
        reads=lambda _: read_verdicts(path),
        environment=environment,
        limit_s=seconds + 15,
    )


def read_packing(output: str) -> str:
    """Of bench_convert's table: how many times the driver's own copy rate is reached at least.

    Raises:
        ValueError: it has measured nothing.
    """
    ratios: dict[str, float] = {}
    for name in JUDGED_CONVERSIONS:
        row = re.search(rf"^{re.escape(name)} {{2,}}(.*)$", output, re.MULTILINE)
        if row is None:
            raise ValueError(f"no row '{name}'")
        ratios[name] = float(row[1].split()[-2])
    name, ratio = min(ratios.items(), key=lambda item: item[1])
    verdict = "met" if ratio >= 0.9 else "missed"
    return f"G1: {ratio:.2f} of the copy rate ({name}), target 0.90: {verdict}"


def read_sanitizer(output: str) -> str:
    """Of compute-sanitizer's output: how many processes it has checked.

    Raises:
        ValueError: it has found something in one of them, or said nothing.
    """
    counts = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", output)
    found = sum(int(count) for count in counts)
    if found > 0 or not counts:
        raise ValueError(f"{found} errors in {len(counts)} processes")
    return f"no error in {len(counts)} processes"


def name_as_installed(root: Path) -> None:
    """Debian names Open MPI's programs so when it is installed."""
    for program in root.glob("usr/bin/*.openmpi"):
        plain = program.with_suffix("")
        if not plain.exists():
            plain.symlink_to(program.name)


def environments(root: Path, site: Path) -> tuple[dict[str, str], dict[str, str]]:
    """To build with what was brought, and to run what was built."""
    libraries = ":".join(str(path.parent) for path in root.rglob("*.so*"))
    building = {
        "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}",
        "LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    }
    if (root / "usr/bin/mpirun").exists():
        # It looks for its parts where it was made to lie.
        building["OPAL_PREFIX"] = str(root / "usr")
        building["PATH"] = f"{root / 'usr/bin'}:{os.environ.get('PATH', '')}"
        building |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # There may be no network but the loopback interface, which NCCL leaves out by itself.
    building |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    running = {**building, "PYTHONPATH": f"{PACKAGE}:{building['PYTHONPATH']}"}
    nccl = site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    if nccl.exists():  # torch has loaded its own by then, and would be asked first.
        running["MYDIST_NCCL_LIBRARY"] = str(nccl)
    return building, running


def build(environment: Mapping[str, str], has_gpu: bool, root: Path) -> list[Step]:
    """The steps that come before all others."""
    architectures = ["-DCMAKE_CUDA_ARCHITECTURES=native"] if has_gpu else []
    gtest = [f"-DGTest_DIR={path.parent}" for path in root.rglob("GTestConfig.cmake")]
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(TREE), "-DMYDIST_WITH_CUDA=ON"]
    configure += ["-DMYDIST_BUILD_TESTS=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += [f"-DCMAKE_PREFIX_PATH={root / 'usr'}", *gtest, *architectures]
    # What was brought and is not found would be left out without a word.
    if (root / "usr/bin/mpirun").exists():
        configure.append("-DMYDIST_WITH_MPI=ON")
    if any(root.rglob("libgloo*")):
        configure.append("-DMYDIST_WITH_GLOO=ON")
    make = ["cmake", "--build", str(TREE), "--parallel", str(os.cpu_count() or 2)]
    install = ["cmake", "--install", str(TREE), "--prefix", str(PACKAGE / "mydist")]
    return [
        Step("configure", configure, needs_gpu=False, environment=environment),
        Step("build", make, needs_gpu=False, environment=environment, limit_s=480),
        Step("install", install, needs_gpu=False),
    ]


def python_tests(report: Path, environment: Mapping[str, str]) -> list[Step]:
    """Those of ranks that share the GPU are a step of their own: one that hangs costs no others."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    folder = ROOT / "tests" / "gpu"
    shared, alone = folder / "test_two_ranks.py", report.with_name("gpu_python.xml")
    return [
        Step(
            "Python API on the GPU",
            [*pytest, str(folder), f"--ignore={shared}", f"--junitxml={alone}"],
            reads=lambda _: count_tests(alone),
            environment=environment,
            limit_s=90,
        ),
        Step(
            "ranks that share the GPU",
            [*pytest, str(shared), f"--junitxml={report}"],
            reads=lambda _: read_shared_tests(report),
            environment=environment,
            limit_s=200,
        ),
    ]


def sanitizers() -> list[Step]:
    """The kernels' tests once more, slowly."""
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    # A call that fails is no error here: tests have some fail.
    checked = [program, "--error-exitcode=9", "--report-api-errors", "no"]
    checked += ["--target-processes", "all", "--tool"]
    # Checked memory is slow: the one scene of gigabytes is left to the tests.
    fast = ["--gtest_filter=-*Beyond32Bits*", "--gtest_brief=1"]
    return [
        Step(
            f"compute-sanitizer {tool}, {test}",
            [*checked, tool, str(TREE / "tests" / test), *fast],
            reads=read_sanitizer,
        )
        for tool in ("memcheck", "synccheck", "racecheck")
        for test in ("test_gpu", "test_gpu_ipc")
    ]


def plan(results: Path, has_gpu: bool, root: Path, site: Path) -> list[Step]:
    """All steps, in order: where time runs out, what has no figure is left out."""
    junit = results / "gpu_tests.xml"
    building, running = environments(root, site)
    ctest = ["ctest", "--test-dir", str(TREE), "--no-tests=error", "--output-on-failure"]
    return [
        *build(building, has_gpu, root),
        Step(
            "tests on the GPU",
            [*ctest, "-L", "gpu", "--output-junit", str(junit)],
            reads=lambda _: count_tests(junit),
            environment=running,
            limit_s=90,
        ),
        *python_tests(results / "gpu_shared.xml", running),
        Step(
            "pack, scale, cast",
            [str(TREE / "tests" / "bench_convert")],
            reads=read_packing,
            limit_s=30,
        ),
        *(benchmark(row, seconds, results, running) for row, seconds in BENCHMARKS.items()),
        Step(
            "plugin, device and NCCL tests",
            [*ctest, "-R", "Nccl|Device|Staged|Direct|Fold|Gpu", "--parallel", "4"],
            needs_gpu=False,
            environment=running,
            reads=lambda output: _line_of(output, r"\d+% tests passed.*"),
            limit_s=120,
        ),
        *sanitizers(),
    ]


def _line_of(output: str, pattern: str) -> str:
    found = re.search(pattern, output)
    return found[0] if found else ""


def run_steps(steps: Iterable[Step], no_gpu: str, results: Path, deadline: float) -> list[Outcome]:
    """One after the other until `deadline` (of time.monotonic()); after a failed build no more."""
    outcomes: list[Outcome] = []
    stopped = ""
    for step in steps:
        left = deadline - time.monotonic()
        if stopped or left <= 0:
            outcomes.append(Outcome(step.name, NOT_RUN, detail=stopped or "time ran out"))
        elif step.needs_gpu and no_gpu:
            outcomes.append(Outcome(step.name, SKIPPED, detail=no_gpu))
        else:
            log = results / f"{len(outcomes)}.log"
            outcomes.append(_run(step, log, min(left, step.limit_s)))
            if outcomes[-1].verdict == FAILED and step.name in ("configure", "build", "install"):
                stopped = f"{step.name} failed"
        print(f"{outcomes[-1].verdict:8} {step.name}", flush=True)
    return outcomes


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """Ends it with all that it has started, which would disturb the next step; what it has written.

    pytest, when it is interrupted, reports on what has run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            return process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            continue
    return b""


def _read(step: Step, output: str) -> tuple[str, bool]:
    """What came of it, or what is wrong, and whether it is the first."""
    try:
        return step.reads(output), True
    except Exception as error:  # The other steps go on, whatever the output of this one is.
        return f"{type(error).__name__}: {error}", False


def _run(step: Step, log: Path, seconds: float) -> Outcome:
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env={**os.environ, **step.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        return Outcome(step.name, NOT_RUN, detail=str(error))
    ended = ""
    try:
        written, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        ended = f"not over in {seconds:.0f} s"
        written = _end(process)
    took = time.monotonic() - start
    log.write_bytes(written)
    words, is_right = _read(step, written.decode(errors="replace"))
    if not ended and process.returncode != 0:
        ended = f"exit code {process.returncode}"
    if is_right and not ended:
        return Outcome(step.name, PASSED, took, words)
    known = words if is_right or not ended else ""
    told = "; ".join(filter(None, [ended, known, f"see {log.name}"]))
    return Outcome(step.name, FAILED, took, told)


def show(facts: Mapping[str, str], outcomes: Sequence[Outcome]) -> bool:
    """Prints the table; whether nothing failed or was left out for another reason than no GPU."""
    for name, value in facts.items():
        print(f"{name:8} {value}")
    for outcome in outcomes:
        took = f"{outcome.seconds:6.1f} s" if outcome.seconds else " " * 8
        print(f"{outcome.verdict:8} {took}  {outcome.name:30} {outcome.detail}".rstrip())
    for row, why in UNMEASURED.items():
        print(f"{'-':8} {' ' * 8}  {row:30} not measured: {why}")
    return all(outcome.verdict in (PASSED, SKIPPED) for outcome in outcomes)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("--files", type=Path, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--commit", help="what this tree is, where git cannot tell")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * options.minutes
    options.results.mkdir(parents=True, exist_ok=True)
    root, site = TREE / "root", TREE / "site"
    copy_package(ROOT, PACKAGE)
    brought = unpack(join_pieces(options.files), root, site) if options.files else []
    name_as_installed(root)
    gpu, no_gpu = find_gpu()
    commit = first_line(["git", "-C", str(ROOT), "describe", "--always", "--dirty"])
    facts = {
        "GPU": gpu or f"none ({no_gpu})",
        "commit": options.commit or commit or "unknown",
        "Python": sys.version.split()[0],
        "torch": first_line([sys.executable, "-c", TELL_TORCH]) or "none",
        "nvcc": first_line(["nvcc", "--version"], r"release .*") or "none",
        "brought": ", ".join(brought) or "nothing",
    }
    for old in (*options.results.glob("G*.json"), *options.results.glob("gpu_*.xml")):
        old.unlink()  # Else a step that writes none would be judged by it.
    steps = plan(options.results.resolve(), bool(gpu), root, site)
    outcomes = run_steps(steps, no_gpu, options.results, deadline)
    report = {"facts": facts, "steps": [asdict(outcome) for outcome in outcomes]}
    report["not_measured"] = UNMEASURED
    (options.results / "results.json").write_text(json.dumps(report, indent=2) + "\n")
    return 0 if show(facts, outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
