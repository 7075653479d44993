"""The GPU check without a GPU, with other steps or another cmake than the real ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts import gpu_check
from scripts.carried_files import find_variables
from scripts.gpu_check import FAILED, NOT_RUN, PASSED, SKIPPED, Step

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

ROOT = Path(__file__).resolve().parents[2]
Check = Callable[..., tuple[int, dict[str, Any]]]


def shell(name: str, code: str, limit_s: float = 60, **options: Any) -> Step:
    return Step(name, ["sh", "-c", code], limit_s, **{"needs_gpu": False, **options})


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Runs the command; returns its exit code and what results.json has."""
    monkeypatch.setattr(gpu_check, "ask", lambda *_: ("", "no driver"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(steps: list[Step] | None = None, *options: str) -> tuple[int, dict[str, Any]]:
        if steps is not None:
            monkeypatch.setattr(gpu_check, "plan", lambda *_: steps)
        folders = [str(tmp_path / "results"), "--tree", str(tmp_path / "tree")]
        code = gpu_check.main([*folders, *options])
        document = json.loads((tmp_path / "results/results.json").read_text())
        document["verdicts"] = {step["name"]: step["verdict"] for step in document["steps"]}
        return code, document

    return run


@pytest.mark.parametrize(
    "refused", ["-DNOTHING", "-DMYDIST_WITH_MPI=ON", "-DMYDIST_BUILD_TESTS=ON"]
)
def test_without_a_gpu_all_is_built_and_the_rest_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check, refused: str
) -> None:
    """Also where CMake refuses a library that was brought."""
    tree = tmp_path / "tree"
    (tree / "root/usr/bin").mkdir(parents=True)
    (tree / "root/usr/bin/mpirun").touch()
    made = [path for step in gpu_check.plan(tree, tree, False, "") for path in step.makes]
    lines = [f"case \" $* \" in *' {refused} '*) exit 1;; esac"]
    lines += [f"cd {tree}; mkdir -p mydist/lib tests benchmarks"]
    for path in {str(path).replace("*", "x") for path in made}:
        lines += [f"printf '#!/bin/sh\\necho \"[  PASSED  ] 7 tests.\"' >{path}; chmod +x {path}"]
    (tmp_path / "cmake").write_text("\n".join(["#!/bin/sh", *lines]))
    (tmp_path / "cmake").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    code, told = check()
    ways = [verdict for name, verdict in told["verdicts"].items() if name.startswith("configure")]
    assert code == (ways != [PASSED])
    assert ways == [FAILED] * (len(ways) - 1) + [PASSED]
    assert told["verdicts"]["build"] == told["verdicts"]["test_nccl_plugin"] == PASSED
    skipped = [step for step in told["steps"] if step["verdict"] == SKIPPED]
    assert len(skipped) > 10 and {step["detail"] for step in skipped} == {"no driver"}
    code, told = check(None, "--only", "benchmark G4")
    assert list(told["verdicts"])[-2:] == ["build", "benchmark G4"]
    assert gpu_check.main([str(tmp_path), "--tree", str(tree), "--only", "no step has it"]) == 1


def test_a_broken_part_costs_only_what_uses_it(tmp_path: Path, check: Check) -> None:
    one, other = tmp_path / "one.so", tmp_path / "other.so"
    one.write_text("an earlier build")
    steps = [
        shell("build", f"touch {other}; echo lost; exit 3", makes=[one, other]),
        shell("of one", "true", uses=[other, one]),
        shell("of the other", "true", uses=[tmp_path / "oth*.so"]),
        Step("absent program", ["/nowhere/program"], 60, needs_gpu=False),
    ]
    code, told = check(steps)
    assert code == 1
    assert list(told["verdicts"].values()) == [FAILED, NOT_RUN, PASSED, FAILED]
    assert told["steps"][0]["detail"] == "exit code 3; lost; see 00.log"
    assert told["steps"][1]["detail"] == "not there: one.so"
    assert "/nowhere/program" in told["steps"][3]["detail"]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_step_that_hangs_is_ended_at_its_limit_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    monkeypatch.setattr(gpu_check, "KILLED_AFTER_S", 1)
    hangs = f"trap '' INT; sleep 600 & echo $! >{tmp_path}/pid; while :; do wait; done"
    code, told = check([shell("hangs", hangs, 3), shell("next", "true")])
    assert code == 1 and told["verdicts"] == {"hangs": FAILED, "next": PASSED}
    assert told["steps"][0]["detail"].startswith("not over in 3 s")
    # SIGKILL has been sent to it; the kernel ends it soon after.
    pid, end = int((tmp_path / "pid").read_text()), time.monotonic() + 5
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(pid)
    code, told = check([shell("late", "true")], "--minutes", "0")
    assert code == 1 and told["steps"][0]["detail"] == "time ran out"
    assert told["verdicts"] == {"late": NOT_RUN}


def test_results_are_whole_after_every_step_and_when_stopped(tmp_path: Path) -> None:
    results = tmp_path / "results"
    code = f"""
import sys; from scripts import gpu_check as check
steps = [check.Step("first", ["echo", "one"], 60, needs_gpu=False),
         check.Step("second", ["sh", "-c", "echo $$; exec sleep 600"], 60, needs_gpu=False),
         check.Step("third", ["true"], 60, needs_gpu=False)]
check.plan, check.ask = lambda *_: steps, lambda *_: ("", "none")
sys.exit(check.main(["{results}", "--tree", "{tmp_path}/tree"]))"""
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
            log = tmp_path / "tree/logs/01.log"
            deadline = time.monotonic() + 60
            while not log.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert sorted(p.name for p in results.glob("[!.e]*")) == sorted(gpu_check.FILES)
            process.terminate()
            assert process.wait(30) == 1
            assert not log.read_text() or not is_running(int(log.read_text()))
        log.unlink()
    for folder in (results, results / "earlier_1"):
        steps = json.loads((folder / "results.json").read_text())["steps"]
        assert [step["verdict"] for step in steps] == [PASSED, FAILED, NOT_RUN]
        assert steps[2]["detail"] == "stopped by SIGTERM"
        assert (folder / "summary.txt").read_text().count("\n") == 9
        with tarfile.open(folder / "logs.tar.gz") as archive:
            assert "logs/00.log" in archive.getnames()


def test_a_broken_file_is_named_and_costs_no_other(tmp_path: Path, check: Check) -> None:
    files, package = tmp_path / "files", tmp_path / "package"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "usr/lib").mkdir(parents=True)
    (package / "usr/lib/libgloo.so.0").write_text("library")
    control = "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: b\nDescription: c\n"
    (package / "DEBIAN/control").write_text(control)
    files.mkdir()
    subprocess.run(["dpkg-deb", "-b", package, files / "whole.deb"], check=True, timeout=60)
    content = (files / "whole.deb").read_bytes()
    (files / "libc6_1_all.deb").write_bytes(content)
    (files / "short.deb").write_bytes(content[:-40])
    with zipfile.ZipFile(package / "wheel", "w") as archive:
        archive.writestr("nvidia/nccl/lib/libnccl.so.2", bytes(9000))
    content = (package / "wheel").read_bytes()
    (files / "damaged.whl").write_bytes(content.replace(bytes(9000), b"1" * 9000))
    for number in range(100):  # As `split -d` names them.
        piece = content[number * 100 : number * 100 + 100]
        number = number if number < 90 else 8910 + number
        (files / f"pieces.whl.part{number:02}").write_bytes(piece)
        if number != 7:
            (files / f"lacking.whl.part{number:02}").write_bytes(piece)
    code, told = check([shell("step", "true")], "--files", str(files))
    assert code == 1 and told["verdicts"] == {"step": PASSED}
    broken = re.findall(r"(\S+) \(broken: .+?\)", told["facts"]["brought"])
    assert broken == ["damaged.whl", "lacking.whl", "short.deb"]
    used = ["libc6_1_all.deb (refused: the system has its own)", "pieces.whl", "whole.deb"]
    assert told["facts"]["brought"].startswith(", ".join(used))
    tree = tmp_path / "tree"
    assert find_variables(tree)["MYDIST_NCCL_LIBRARY"].startswith(str(tree))
    assert find_variables(tree)["LD_LIBRARY_PATH"].split(":")[0] == f"{tree}/root/usr/lib"
    assert "-DMYDIST_WITH_GLOO=ON" in gpu_check.configure(tree, has_gpu=False)[0].command


TABLE = """161 tensors
pack                        100.00    103.00   2900   2800    0.90     4.20  {launches}
pack, close together        100.00    150.00   2900   2000    0.67     4.20         1
pack, × 1/8                 100.00    101.00   2900   2850    0.99     4.20         1
pack to float16, × 1/8      100.00    {took}   2900   2850    0.90     4.20         1
"""
CLEAN, DIRTY = "===== ERROR SUMMARY: 0 errors\n", "===== RACECHECK SUMMARY: 2 hazards displayed\n"


@pytest.mark.parametrize(
    ("read", "output", "verdict", "words"),
    [
        ("packing", TABLE.format(took="111.00", launches=1), "met", "0.901 of the copy rate ("),
        ("packing", TABLE.format(took="111.20", launches=1), "missed", "0.899 of the copy rate"),
        ("packing", TABLE.format(took="111.00", launches=2), "missed", "launches: 2"),
        ("sanitizer", CLEAN + CLEAN, PASSED, "0 errors in 2 processes"),
        ("sanitizer", DIRTY + CLEAN, FAILED, "2 errors in 2 processes"),
        ("sanitizer", "no GPU was used", FAILED, "0 errors in 0 processes"),
        ("tests", "[  PASSED  ] 24 tests.\n", PASSED, "24 tests"),
        ("tests", "=== 21 passed, 3 skipped in 61.20s (0:01:01) ===\n", PASSED, "21 passed, 3 "),
        ("tests", "SKIPPED [3] a.py:7: why\n=== 3 skipped in 0.1s ===\n", "not measured", "7: why"),
        ("tests", "a.cc:7: Skipped\nwhy\n[  PASSED  ] 0 tests.\n", "not measured", "why"),
    ],
)
def test_what_programs_print_is_judged(read: str, output: str, verdict: str, words: str) -> None:
    found = getattr(gpu_check, f"read_{read}")(output)
    assert found[0] == verdict and words in found[1]


def test_the_worst_verdict_of_a_benchmark_counts(tmp_path: Path) -> None:
    met = {"what": "G", "unit": "%", "measured": 0.5, "verdict": "met", "reason": ""}
    absent = {**met, "measured": None, "verdict": "not measured", "reason": "why", "interval": None}
    verdicts = [{**met, "interval": [-0.25, 0.75]}, absent]
    (tmp_path / "G5.json").write_text(json.dumps({"verdicts": verdicts}))
    expected = "G: 0.5 % (-0.25 to 0.75), met; G: -, not measured (why)"
    assert gpu_check.read_verdicts(tmp_path / "G5.json") == ("not measured", expected)


def test_the_plan_has_every_row_and_every_layout() -> None:
    command = [sys.executable, "-m", "benchmarks", "--help"]
    told = subprocess.check_output(command, cwd=ROOT, text=True, timeout=60)
    assert set(re.findall(r"\bG\d+", told)) == set(gpu_check.BENCHMARKS)
    layouts = re.findall(
        r'^    "(.+)": (?:Layout|_hosts)\(', (ROOT / gpu_check.SHARED).read_text(), re.M
    )
    assert {*gpu_check.NCCL_LAYOUTS, *gpu_check.LAYOUTS} == set(layouts)


def test_the_table_names_the_versions_of_torch_and_nccl() -> None:
    assert ", NCCL " in gpu_check.ask(sys.executable, "-c", gpu_check.TELL_TORCH)[0]
    assert gpu_check.ask("/nowhere/nvcc") == ("", "/nowhere/nvcc: No such file or directory")


def test_make_hands_its_options_on() -> None:
    command = ["make", "--silent", "gpu-check", "RESULTS=r", "FILES=f", "ONLY=o", "COMMIT=c"]
    told = subprocess.check_output(
        command, cwd=ROOT, env={**os.environ, "MYDIST_PYTHON": "echo"}, text=True, timeout=60
    )
    assert told == "-m scripts.gpu_check r --files f --only o --commit c\n"
