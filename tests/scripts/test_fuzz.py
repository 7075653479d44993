"""What `make fuzz` makes of the ends of its targets, without a fuzzer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from scripts import fuzz

# As libFuzzer behaves: an input named "bad" breaks a promise.
FUZZER = """
import pathlib, sys
print("stat::number_of_executed_units: 12", file=sys.stderr)
folders = [pathlib.Path(name) for name in sys.argv[1:] if not name.startswith("-")]
(folders[0] / "new").write_text("x")
prefix = next(name[17:] for name in sys.argv if name.startswith("-artifact_prefix="))
if any((folder / "bad").exists() for folder in folders):
    print("x.cc:1: a promise is broken: it survives", file=sys.stderr)
    print(f"Test unit written to {prefix}crash-1", file=sys.stderr)
    sys.exit(77)
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fuzz.Target:
    monkeypatch.setattr(fuzz, "TREE", tmp_path)
    monkeypatch.setattr(fuzz, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(fuzz, "FOUND", tmp_path / "found")
    for folder in ("logs", "corpus/parser", "kept/parser"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "fuzzer.py").write_text(FUZZER)
    return fuzz.Target("parser", (sys.executable, str(tmp_path / "fuzzer.py")))


def arguments(executions: int = 0) -> argparse.Namespace:
    return argparse.Namespace(jobs=1, seconds=1, executions=executions)


def test_a_run_counts_executions_and_new_inputs(
    target: fuzz.Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz.run([target], arguments()) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("parser")]
    name, executions, _, new_inputs, verdict = row.split()
    assert (name, executions, new_inputs, verdict) == ("parser", "12", "1", "ok")


def test_rounds_go_on_until_the_executions_are_done(
    target: fuzz.Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz.run([target], arguments(executions=30)) == 0
    output = capsys.readouterr().out
    assert output.startswith("12 of 30 executions\n24 of 30 executions\n")
    assert "\nall                              36 " in output


def test_a_broken_promise_ends_the_run_and_can_be_repeated(
    target: fuzz.Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept" / "parser" / "bad").write_text("")
    assert fuzz.run([target], arguments(executions=1_000)) == 1
    output = capsys.readouterr().out
    found = f"{tmp_path}/found/parser-crash-1"
    assert "x.cc:1: a promise is broken: it survives" in output
    assert f"  input:     {found}" in output
    (line,) = [line for line in output.splitlines() if "reproduce: " in line]
    assert line.endswith(found) and " ".join(target.command) in line
