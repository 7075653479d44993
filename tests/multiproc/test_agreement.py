"""Ranks that differ are told how, on all of them, before the first collective; then all agree."""

from __future__ import annotations

import json
from typing import Any

import pytest
from soon import SOON_S

from multiproc.job import WORKERS, launch

NP = 3
LAST = NP - 1

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, str]:
    """What the ranks got, by case, and what they have printed."""
    folder = tmp_path_factory.mktemp("agreement")
    command = (str(WORKERS / "agreement.py"), str(folder))
    # Threads of the ranks are in a collective when these end, and must not change their exit code.
    output = launch(NP, "local", *command, timeout=90).expect_success().output
    found: Rows = {}
    for path in sorted(folder.iterdir()):
        name, _, rank = path.name.partition(".")
        row = json.loads(path.read_text())
        assert int(rank) == len(found.setdefault(name, []))
        found[name].append(row)
    return found, output


@pytest.fixture
def rows(told: tuple[Rows, str]) -> Rows:
    return told[0]


def expect_told(rows: Rows, case: str, error: str, *words: str) -> str:
    """All ranks raise the same error soon, and it blames the last rank. Gives its text."""
    assert [row["error"] for row in rows[case]] == [error] * NP, rows[case]
    (text,) = {row["text"] for row in rows[case]}
    for word in words:
        assert word in text, text
    for row in rows[case]:
        assert row["seconds"] < SOON_S, row
        assert row["failure"]["ranks"] == [LAST] and row["failure"]["phase"] == "start", row
    return text


@pytest.mark.parametrize(
    ("case", "error", "words"),
    [
        (
            "version",
            "VersionMismatchError",
            ["differ in their version; ", "): mydist 9.9.9, protocol "],
        ),
        ("protocol", "VersionMismatchError", ["differ in their protocol; ", ", protocol 99, "]),
        ("platform", "VersionMismatchError", ["differ in their platform; ", ", big-endian 64-bit"]),
        (
            "settings",
            "MismatchError",
            [
                "MYDIST_CACHE_CAPACITY and MYDIST_FREEZE_AFTER must be the same on every rank",
                "\nMYDIST_CACHE_CAPACITY:\n  ranks 0, 1 (host localhost): 1024\n",
                "\nMYDIST_FREEZE_AFTER:\n  ranks 0, 1 (host localhost): 10\n",
                "): 7\n",
                "): 3",
            ],
        ),
    ],
)
def test_ranks_that_differ_are_told_how(
    rows: Rows, case: str, error: str, words: list[str]
) -> None:
    text = expect_told(rows, case, error, *words)
    assert "\n  ranks 0, 1 (host localhost): " in text
    assert f"\n  rank {LAST} (host localhost, pid {rows[case][LAST]['pid']}): " in text


def test_a_rank_that_sends_no_hello_is_named(rows: Rows) -> None:
    expect_told(rows, "garbage", "VersionMismatchError", f"rank {LAST}: a peer does not run mydist")


def test_a_rank_with_too_few_descriptors_is_named(rows: Rows) -> None:
    text = expect_told(rows, "files", "MydistError", "raise it with `ulimit -n` before the start")
    pid = rows["files"][LAST]["pid"]
    assert text.startswith(f"rank {LAST} (host localhost, pid {pid}) can open "), text
    assert "more files, and a job of 3 ranks needs at least 6 on each. Its limit is " in text


def test_what_is_pending_at_shutdown_is_named(rows: Rows) -> None:
    *others, last = rows["pending"]
    assert last["error"] == ""
    for row in others:
        assert row["error"] == "AbortedError", row
        assert "'pending.0' can no longer complete, nor can 'pending.1'" in row["text"], row
        assert row["failure"]["tensor"] == "pending.0", row
        assert row["failure"]["operation"] == "allreduce", row
        assert row["seconds"] < SOON_S, row


def test_what_no_rank_waits_for_is_told_in_the_log(told: tuple[Rows, str]) -> None:
    words = "'pending.1'. Wait for all handles before you call shutdown()."
    lines = [line for line in told[1].splitlines() if words in line]
    assert len(lines) == NP - 1, told[1]


def test_who_has_learnt_of_it_needs_no_warning(told: tuple[Rows, str]) -> None:
    rows, output = told
    assert [row["error"] for row in rows["awaited"]] == ["AbortedError"] * (NP - 1) + [""], rows
    assert "'awaited.1'" in rows["awaited"][0]["text"], rows
    assert "'awaited." not in output, output


def test_the_next_start_is_not_harmed(rows: Rows) -> None:
    assert [row["error"] for row in rows["nothing"]] == [""] * NP, rows["nothing"]
