"""scripts/run_gtest.py over a stand-in for a GoogleTest program, and what reads its report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

# Its tests do what their names say; each process leaves a file that lists what it was asked for.
PROGRAM = """#!{python}
import os, pathlib, sys, time
names = {names}
if "--gtest_list_tests" in sys.argv:
    print("Suite.")
    for name in names:
        print("  " + name.split(".")[1])
    sys.exit()
flags = [a.partition("=")[2] for a in sys.argv if a.startswith("--gtest_flagfile=")]
chosen = pathlib.Path(flags[0]).read_text().strip().partition("=")[2].split(":")
folder = pathlib.Path({folder!r})
(folder / str(os.getpid())).write_text(" ".join(chosen))
bad = 0
for name in chosen:
    print("[ RUN      ] " + name, flush=True)
    if "Crashes" in name:
        os.abort()
    if "Hangs" in name:
        time.sleep(600)
    word = "  FAILED  " if "Fails" in name else "  SKIPPED " if "Skips" in name else "       OK "
    bad += "Fails" in name
    print("[" + word + "] " + name + " (12 ms)", flush=True)
sys.exit(3 if {at_end} else 1 if bad else 0)
"""


class Runs:
    """What one call of run_gtest.py did."""

    def __init__(self, folder: Path, names: list[str], *options: str, at_end: bool = False) -> None:
        program, processes = folder / "program", folder / "processes"
        processes.mkdir(exist_ok=True)
        full = [f"Suite.{name}" for name in names]
        text = PROGRAM.format(
            python=sys.executable, names=full, folder=str(processes), at_end=at_end
        )
        program.write_text(text)
        program.chmod(0o755)
        self.report = folder / "reports" / "report.jsonl"
        ended = subprocess.run(
            [
                *(sys.executable, str(SCRIPTS / "run_gtest.py"), str(program)),
                *("--report", str(self.report), *options),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.code, self.output = ended.returncode, ended.stdout + ended.stderr
        rows = self.report.read_text().splitlines() if self.report.exists() else []
        self.results = {row["name"]: row["result"] for row in map(json.loads, rows)}
        self.asked = sorted(path.read_text() for path in processes.iterdir())


def test_all_tests_share_a_process(tmp_path: Path) -> None:
    runs = Runs(tmp_path, ["Passes", "Skips", "AlsoPasses"])
    assert runs.code == 0, runs.output
    assert runs.asked == ["Suite.Passes Suite.Skips Suite.AlsoPasses"]
    assert runs.results == {
        "Suite.Passes": "passed",
        "Suite.Skips": "skipped",
        "Suite.AlsoPasses": "passed",
    }


@pytest.mark.parametrize("bad", ["Fails", "Crashes", "Hangs"])
def test_a_bad_test_costs_only_itself(bad: str, tmp_path: Path) -> None:
    runs = Runs(tmp_path, ["Passes", bad, "AlsoPasses"], "--limit", "2")
    assert runs.code == 1
    assert f"failed: Suite.{bad}" in runs.output
    assert runs.results == {
        "Suite.Passes": "passed",
        f"Suite.{bad}": "failed",
        "Suite.AlsoPasses": "passed",
    }
    assert len(runs.asked) == (1 if bad == "Fails" else 2)
    # Where it hung.
    assert bool(re.search(r"^  \d+ \S+ S \d+ 0x", runs.output, re.MULTILINE)) == (bad == "Hangs")


def test_a_process_that_fails_after_its_tests_has_failed(tmp_path: Path) -> None:
    runs = Runs(tmp_path, ["Passes", "AlsoPasses"], at_end=True)
    assert runs.code == 1
    assert "the process of 2 tests ended with 3" in runs.output


def test_some_have_a_process_of_their_own(tmp_path: Path) -> None:
    runs = Runs(tmp_path, ["Passes", "Lone1", "Lone2"], "--alone", "*.Lone*:Other.*")
    assert runs.code == 0, runs.output
    assert runs.asked == ["Suite.Lone1", "Suite.Lone2", "Suite.Passes"]


def test_shards_have_each_test_once(tmp_path: Path) -> None:
    names = [f"Passes{i}" for i in range(5)]
    for shard in ("1/2", "2/2"):
        runs = Runs(tmp_path, names, "--shard", shard)
        assert runs.code == 0, runs.output
    assert sorted(" ".join(runs.asked).split()) == [f"Suite.{name}" for name in names]


def test_a_program_without_tests_has_failed(tmp_path: Path) -> None:
    runs = Runs(tmp_path, [])
    assert runs.code == 4
    assert "has no tests" in runs.output


def test_the_report_tells_the_slowest_and_how_all_ended(tmp_path: Path) -> None:
    Runs(tmp_path, ["Passes", "Skips", "Fails"])
    other = tmp_path / "other.jsonl"
    other.write_text('{"name": "slow", "result": "passed", "seconds": 3.5}\n')
    report = str(tmp_path / "reports" / "report.jsonl")
    command = [sys.executable, str(SCRIPTS / "test_report.py"), "--slowest", "1", report]
    ended = subprocess.run(
        [*command, str(other)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == [
        "The 1 slowest checks:",
        "     3.5 s  slow",
        "2 passed, 1 failed, 1 skipped",
    ]
    nothing = subprocess.run(
        [*command[:-1], str(tmp_path / "none")], capture_output=True, timeout=60, check=False
    )
    assert nothing.returncode == 1, "no report at all is no success"


def test_the_syntax_check_finds_what_does_not_compile(tmp_path: Path) -> None:
    """In a build tree of which only the list of commands counts."""
    good, bad = (SCRIPTS.parent / "csrc" / "base" / "dtype.cc", tmp_path / "bad.cc")
    bad.write_text("int F() { return nothing; }\n")
    flags = f"-std=c++20 -I{SCRIPTS.parent / 'csrc'}"

    def check(source: Path) -> subprocess.CompletedProcess[str]:
        # It takes files of the tree only: the bad one is compiled in place of a good one.
        command = f"ccache c++ {flags} -o x.o -c {source}"
        entry = {"directory": str(tmp_path), "command": command, "file": str(good)}
        (tmp_path / "compile_commands.json").write_text(json.dumps([entry]))
        return subprocess.run(
            [sys.executable, str(SCRIPTS / "check_syntax.py"), str(tmp_path), "csrc/base"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert check(good).returncode == 0
    failed = check(bad)
    assert failed.returncode == 1 and "nothing" in failed.stdout, failed.stdout
    (tmp_path / "compile_commands.json").write_text("[]")
    none = [sys.executable, str(SCRIPTS / "check_syntax.py"), str(tmp_path), "csrc/base"]
    assert subprocess.run(none, capture_output=True, timeout=60, check=False).returncode == 1
