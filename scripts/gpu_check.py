"""Builds mydist from this tree, runs what needs a GPU, and prints a short table last.

    python3 -m scripts.gpu_check RESULTS [--files FOLDER] [--only PATTERN] [--minutes 8]
                                 [--commit NAME]

Needs no network. The machine has to have Python with torch (which runs this) and its headers
(python3-dev), CMake, Ninja, a C++20 compiler and nvcc. FOLDER may hold what else is missing:

    *.deb   libgtest-dev, libgmock-dev, googletest: the C++ tests
            libgloo-dev, libgloo0, libhiredis0.14, libibverbs1, libnl-3-200, libnl-route-3-200: the
            Gloo backend, for ranks that pretend to be on two hosts, and for row G4
            openmpi-bin, openmpi-common, libopenmpi-dev, libopenmpi3, libevent-core-2.1-7,
            libevent-pthreads-2.1-7, libhwloc15, libmunge2, libpmix2: the MPI backend
    *.whl   cloudpickle: mydist itself
            nvidia-nccl-cu13: an NCCL other than torch's, which the tests in Python use then
            pytest, iniconfig, packaging, pluggy: the tests in Python

Packages of the system's own libraries (libc6, libgcc-s1, libstdc++6) are refused. A large file may
come in pieces, as `split -d -b 50M FILE FILE.part` makes them. Where each copy of a folder replaces
the one before, gather them: `mkdir -p /tmp/files && cp pieces/* /tmp/files` after every copy.

RESULTS gets results.json, summary.txt with the table, and logs.tar.gz; each is renewed after every
step. Files of an earlier run go to RESULTS/earlier_1, the next ones to earlier_2. What is built
stays in build/gpu, so a second run with --only goes on where the time of the first one ended.

Exit code 0: every step ran, measured and was right, and no file was broken. A missed target is no
failure. Without a GPU everything is built, and each step that needs one is skipped.
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
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .carried_files import find_variables, unpack

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "FAILED", "skipped", "NOT RUN"
FIGURES = ("met", "undecided", "missed", "not measured")
FINE = (PASSED, SKIPPED, *FIGURES[:3])
FILES = ("results.json", "summary.txt", "logs.tar.gz")
KILLED_AFTER_S = 8  # From SIGINT, on which pytest reports what has run.
# Rows of `python -m benchmarks --gpu`, with the seconds a slow machine needs.
BENCHMARKS = {"G4": 40, "G5": 75, "G6": 60, "G2": 45}
SHARED = "tests/gpu/test_two_ranks.py"
NCCL_LAYOUTS = ("NCCL between hosts", "NCCL that shares")  # Row G7.
LAYOUTS = ("2 hosts x 1", "2 hosts x 2", "host memory", "2 hosts x 1, MPI", "2 hosts x 2, MPI")
PACKING = ("pack", "pack, × 1/8", "pack to float16, × 1/8")  # Row G1 is the slowest of these.
TELL_GPU = "import torch; print(torch.cuda.get_device_name())"
TELL_TORCH = """import torch
nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else ["unknown"]
print(f"{torch.__version__}, NCCL {'.'.join(map(str, nccl))}")"""


@dataclass
class Step:
    """One line of the table. Names of paths in `makes` and `uses` may be patterns."""

    name: str
    command: Sequence[str]
    limit_s: float
    uses: Sequence[Path] = ()
    makes: Sequence[Path] = ()  # Removed before the first step: a stale file must not be used.
    reads: Callable[[str], tuple[str, str]] = lambda output: (PASSED, "")  # Verdict and words.
    needs_gpu: bool = True
    if_failed: bool = False  # Runs only where the step before it did not pass.


@dataclass
class Outcome:
    """What became of a step; `tail` is the end of its output where it failed."""

    name: str
    verdict: str
    detail: str
    seconds: float = 0
    tail: str = ""


def read_tests(output: str) -> tuple[str, str]:
    """GoogleTest's or pytest's counts. Where all tests were skipped, nothing was tested."""
    counts = re.findall(r"^(?:=+ )?(\[ .*\] \d+ tests?\b|\d+ .* in \d[\d.]*s)", output, re.M)[-2:]
    if re.search(r"PASSED  \] [1-9]|\b[1-9]\d* passed", " ".join(counts)):
        return PASSED, "; ".join(counts)
    reasons = re.findall(r"(?:^SKIPPED \[\d+\] |: Skipped\n)(.*)", output, re.M)
    return FIGURES[-1], "; ".join([*counts, *reasons[-1:]])


def read_sanitizer(output: str) -> tuple[str, str]:
    """compute-sanitizer prints a summary for each process, and none where no GPU was used."""
    counts = [int(count) for count in re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", output)]
    words = f"{sum(counts)} errors in {len(counts)} processes"
    return PASSED if counts and not any(counts) else FAILED, words


def read_packing(output: str) -> tuple[str, str]:
    """bench_convert's table: the lowest share of the driver's copy rate, and the launches."""
    rows = {name: row.split() for name, row in re.findall(r"^(pack.*?)  +(.*)$", output, re.M)}
    ratio, name = min((float(rows[name][0]) / float(rows[name][1]), name) for name in PACKING)
    launches = max(int(rows[name][-1]) for name in PACKING)
    words = f"{ratio:.3f} of the copy rate ({name}), target 0.90; launches: {launches}, target 1"
    return "met" if ratio >= 0.9 and launches == 1 else "missed", words


def read_verdicts(report: Path) -> tuple[str, str]:
    """What `python -m benchmarks --gpu` has written; the worst verdict counts."""
    words, verdicts = [], json.loads(report.read_text("utf-8"))["verdicts"]
    for one in verdicts:
        told = "-" if one["measured"] is None else f"{one['measured']:.4g} {one['unit']}".rstrip()
        told += " ({:.2f} to {:.2f})".format(*one["interval"]) if one["interval"] else ""
        reason = f" ({one['reason']})" if one["reason"] else ""
        words.append(f"{one['what']}: {told}, {one['verdict']}{reason}")
    return max((one["verdict"] for one in verdicts), key=FIGURES.index), "; ".join(words)


def plan(tree: Path, logs: Path, has_gpu: bool, commit: str) -> list[Step]:
    """All steps. What would be missed most comes first."""
    made, packing, tests = tree / "mydist", tree / "benchmarks/bench_convert", tree / "tests"
    package = [made / "_C.*.so", made / "lib/libmydist.so", made / "lib/libmydist_nccl.so"]
    backends = [made / "lib/libmydist_mpi.so", made / "lib/libmydist_gloo.so"]

    def build(name: str, targets: Sequence[str], *makes: Path) -> Step:
        command = ["cmake", "--build", str(tree), "--parallel", str(os.cpu_count() or 2)]
        command += ["--target", *targets, "--", "-k", "0"]  # Ninja goes on after an error.
        return Step(name, command, 480, [tree / "build.ninja"], makes, needs_gpu=False)

    def cpp(name: str, limit_s: float, needs_gpu: bool = True) -> list[Step]:
        test = Step(name, [str(tests / name)], limit_s, [tests / name], (), read_tests, needs_gpu)
        return [build(f"build of {name}", [name], tests / name), test]

    def python(name: str, limit_s: float, *arguments: str) -> Step:
        pytest = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
        return Step(name, pytest, limit_s, package, reads=read_tests)

    def layout(name: str, row: str = "") -> Step:  # A layout that hangs costs no other.
        return python(f"{row}{name}", 75, SHARED, f"--layout={name}")

    def benchmark(row: str, seconds: float) -> Step:
        report = logs / f"{row}.json"
        command = [sys.executable, "-m", "benchmarks", "--gpu", "--only", row]
        command += ["--minutes", f"{seconds / 60:.2f}", "--json", str(report)]
        command += ["--commit", commit] if commit else []
        name = f"benchmark {row}"
        return Step(name, command, seconds + 15, package, reads=lambda _: read_verdicts(report))

    def sanitizer(tool: str) -> Step:
        program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        # Tests make calls that fail on purpose. Checked memory is too slow for gigabytes.
        command = [program, "--error-exitcode=9", "--report-api-errors", "no", "--tool", tool]
        command += ["--target-processes", "all"]
        command += [str(tests / "test_gpu"), "--gtest_filter=-*Beyond32Bits*"]
        name = f"compute-sanitizer {tool}, test_gpu"
        return Step(name, command, 60, [tests / "test_gpu"], reads=read_sanitizer)

    return [
        *configure(tree, has_gpu),
        build("build", ["mydist_package", packing.name], *package, *backends, packing),
        Step("G1, pack and scale and cast", [str(packing)], 30, [packing], reads=read_packing),
        *cpp("test_gpu", 60),
        *(benchmark(row, seconds) for row, seconds in BENCHMARKS.items()),
        *(layout(name, "G7, ") for name in NCCL_LAYOUTS),
        python("Python API on the GPU", 90, "tests/gpu", f"--ignore={SHARED}"),
        *map(layout, LAYOUTS),
        *cpp("test_nccl_library", 30, needs_gpu=False),
        *cpp("test_nccl_plugin", 30, needs_gpu=False),
        *map(sanitizer, ("memcheck", "racecheck", "synccheck")),
    ]


def configure(tree: Path, has_gpu: bool) -> list[Step]:
    """Each way asks for less than the one before: a file from FOLDER may be unfit for the build."""
    always = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(tree), "-DMYDIST_WITH_CUDA=ON"]
    always += ["-DMYDIST_BUILD_BENCHMARKS=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    always += [f"-DCMAKE_PREFIX_PATH={tree / 'root/usr'}"]
    always += ["-DCMAKE_CUDA_ARCHITECTURES=native"] if has_gpu else []
    # With AUTO, CMake leaves out a broken backend without an error.
    mpi = "ON" if (tree / "root/usr/bin/mpirun").exists() else "AUTO"
    gloo = "ON" if any((tree / "root").rglob("libgloo*")) else "AUTO"
    attempts = {
        "configure": (mpi, gloo, "ON"),
        "configure, with what is found": ("AUTO", "AUTO", "ON"),
        "configure, without tests": ("AUTO", "AUTO", "OFF"),
    }
    steps: list[Step] = []
    for name, values in attempts.items():
        options = ("MYDIST_WITH_MPI", "MYDIST_WITH_GLOO", "MYDIST_BUILD_TESTS")
        command = [*always, *(f"-D{o}={value}" for o, value in zip(options, values, strict=True))]
        makes = [tree / "build.ninja"]
        steps.append(Step(name, command, 120, (), makes, needs_gpu=False, if_failed=bool(steps)))
    return steps


def choose(steps: Sequence[Step], pattern: str) -> list[Step]:
    """The steps whose name has the pattern, and those that make what they use."""
    chosen: list[Step] = []
    used: set[Path] = set()
    for step in reversed(steps):
        if re.search(pattern, step.name) or used & set(step.makes):
            chosen.insert(0, step)
            used |= set(step.uses)
    return chosen


@dataclass
class Run:
    """A run of steps, with what all of them share."""

    folder: Path
    logs: Path
    facts: Mapping[str, str]
    environment: Mapping[str, str]
    no_gpu: str
    end: float  # Of time.monotonic().
    over: str = "time ran out"
    outcomes: list[Outcome] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def stop(self, number: int, _frame: object) -> None:
        """Handles a signal: ends the running step, and runs no other."""
        self.end, self.over = 0, f"stopped by {signal.Signals(number).name}"
        if self.process:
            self.process.send_signal(signal.SIGINT)  # `timeout` passes it on and sees to the end.

    def run_all(self, steps: Sequence[Step]) -> list[Outcome]:
        """Runs one step after the other, and writes the files after each."""
        for pattern in [made for step in steps for made in step.makes]:
            for path in pattern.parent.glob(pattern.name):
                path.unlink()
        for step in steps:
            if step.if_failed and self.outcomes[-1].verdict == PASSED:
                continue
            outcome = self._try(step)
            self.outcomes.append(outcome)
            print(f"{outcome.verdict:12} {step.name}", flush=True)
            self._write()
        return self.outcomes

    def _try(self, step: Step) -> Outcome:
        left = self.end - time.monotonic() - KILLED_AFTER_S
        if left <= 0:
            return Outcome(step.name, NOT_RUN, self.over)
        if step.needs_gpu and self.no_gpu:
            return Outcome(step.name, SKIPPED, self.no_gpu)
        if absent := [path.name for path in step.uses if not any(path.parent.glob(path.name))]:
            return Outcome(step.name, NOT_RUN, f"not there: {', '.join(absent)}")
        start, limit = time.monotonic(), min(left, step.limit_s)
        log = self.logs / f"{len(self.outcomes):02}.log"
        code = self._call(step.command, limit, log)
        took, written = time.monotonic() - start, log.read_text("utf-8", errors="replace")
        ended = f"exit code {code}" if code else ""
        if took >= limit or not self.end:
            ended = f"not over in {limit:.0f} s" if self.end else self.over
        try:
            verdict, words = step.reads(written)
        except Exception as error:  # The output of a step that has crashed is incomplete.
            verdict, words = FAILED, "" if ended else f"{type(error).__name__}: {error}"
        if not ended and verdict != FAILED:
            return Outcome(step.name, verdict, words, took)
        words = words or (written.strip().splitlines() or ["no output"])[-1]
        detail = "; ".join(filter(None, [ended, words, f"see {log.name}"]))
        return Outcome(step.name, FAILED, detail, took, written[-6000:])

    def _call(self, command: Sequence[str], limit_s: float, log: Path) -> int:
        """Returns the exit code. Nothing that the command has started is left."""
        limits = ["--signal=INT", f"--kill-after={KILLED_AFTER_S}", f"{limit_s:.1f}"]
        with log.open("wb") as output:  # A file keeps the output of a step that is killed.
            self.process = subprocess.Popen(
                ["timeout", *limits, *command],
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            if not self.end:  # The signal came before the process was known.
                self.process.send_signal(signal.SIGINT)
            code = self.process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            return code

    def table(self) -> str:
        """One line for each fact and each step."""
        lines = [f"{name:12} {value}" for name, value in self.facts.items()]
        for one in self.outcomes:
            took = f"{one.seconds:6.1f} s" if one.seconds else " " * 8
            lines.append(f"{one.verdict:12} {took}  {one.name:34} {one.detail}".rstrip())
        return "\n".join(lines)

    def _write(self) -> None:
        """Replaces each file as a whole."""
        document = {"facts": self.facts, "steps": [asdict(one) for one in self.outcomes]}
        text = json.dumps(document, indent=2, ensure_ascii=False)
        (self.folder / f".{FILES[0]}").write_text(text + "\n", "utf-8")
        (self.folder / f".{FILES[1]}").write_text(self.table() + "\n", "utf-8")
        with tarfile.open(self.folder / f".{FILES[2]}", "w:gz") as archive:
            archive.add(self.logs, arcname="logs")
        for name in FILES:
            (self.folder / f".{name}").replace(self.folder / name)


def prepare(results: Path, tree: Path) -> Path:
    """Returns an empty folder for logs. Puts an earlier run's results aside, and the package's
    Python files where its libraries are built."""
    earlier = [path for name in FILES if (path := results / name).exists()]
    aside = results / f"earlier_{1 + len(list(results.glob('earlier_*')))}"
    (aside if earlier else results).mkdir(parents=True, exist_ok=True)
    for path in earlier:
        path.rename(aside / path.name)
    compiled = shutil.ignore_patterns("*.so", "lib", "__pycache__")
    for module in (tree / "mydist").rglob("*.py"):  # The source may have it no more.
        module.unlink()
    for source, target in (("python/mydist", "mydist"), ("launcher", "mydist/launcher")):
        shutil.copytree(ROOT / source, tree / target, ignore=compiled, dirs_exist_ok=True)
    shutil.rmtree(tree / "logs", ignore_errors=True)  # A stale report must not be read.
    (tree / "logs").mkdir()
    return tree / "logs"


def ask(*command: str) -> tuple[str, str]:
    """The last line that a program prints, or "" and the reason."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return "", f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return "", f"{command[0]}: no answer in 60 s"
    line = ((run.stdout or run.stderr).strip().splitlines() or [f"exit code {run.returncode}"])[-1]
    return ("", line) if run.returncode else (line, "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="files the machine lacks")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="steps whose name has it, and what they use"
    )
    parser.add_argument("--minutes", type=float, default=8, help="for all of it [8]")
    parser.add_argument("--commit", default="", help="what this tree is, where git cannot tell")
    parser.add_argument("--tree", type=Path, default=ROOT / "build/gpu", help="[build/gpu]")
    options = parser.parse_args(arguments)
    if options.files and not options.files.is_dir():
        parser.error(f"--files: {options.files} is no folder")
    end = time.monotonic() + 60 * options.minutes
    tree, folder = options.tree.resolve(), options.results
    logs = prepare(folder, tree)
    names, broken = unpack(options.files, tree) if options.files else ([], [])
    gpu, no_gpu = ask("nvidia-smi", "--id=0", "--query-gpu=name,driver_version", "--format=csv")
    gpu = gpu or ask(sys.executable, "-c", TELL_GPU)[0]  # A container may lack nvidia-smi.
    git = ask("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    facts = {
        "GPU": gpu or f"none ({no_gpu})",
        "commit": options.commit or git[0] or "unknown",
        "Python": sys.version.split()[0],
        "torch": ask(sys.executable, "-c", TELL_TORCH)[0] or "none",
        "nvcc": ask("nvcc", "--version")[0] or "none",
        "brought": ", ".join([*names, *broken]) or "nothing",
    }
    steps = choose(plan(tree, logs, bool(gpu), options.commit), options.only)
    run = Run(folder, logs, facts, find_variables(tree), "" if gpu else no_gpu, end)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, run.stop)
    outcomes = run.run_all(steps)
    print(run.table())
    return int(bool(broken) or not outcomes or any(one.verdict not in FINE for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
