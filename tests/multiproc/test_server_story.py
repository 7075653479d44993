"""What users see of the parameter server: stats(), explain(), the timeline and its picture."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from multiproc.job import WORKERS, launcher_command, run
from mydist.ps.staleness import main as draw

STEPS, RANKS = 6, 2


def test_calls_of_tables_are_seen(tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.json"
    command = launcher_command(
        RANKS, "local", str(WORKERS / "server_story.py"), str(timeline), flags=["--servers", "2"]
    )
    output = run(command, timeout=120, env={"MYDIST_SHARED_MEMORY": "1"}).expect_success().output
    dense = 600_000 * 4 * STEPS
    start = 600_000 * 4  # Given by rank 0.
    rows = 2 * (8 + 8 + 16 + 8) * STEPS  # To each server, the one without the row, too.
    words = output.replace("[0]<stdout>:", "").split()
    pushed, pulled = (float(words[words.index(word) + 1]) for word in ("pushed", "pulled"))
    assert (
        dense + start < pushed < dense + start + 2 * rows + 4096 and dense < pulled < dense + 4096
    )
    assert "waited True again 0\n" in output and "True\n" in output
    assert "table fc" in output and "SSP(staleness=2) (server 0: " in output
    assert "up to 1000 rows of 4, in blocks of 256 on all servers" in output
    assert output.count(" over shared memory") == 2
    told = json.loads(timeline.read_text(encoding="utf-8"))
    names = Counter(event.get("name") for event in told)
    assert [names[name] for name in ("PUSH", "PULL")] == [STEPS * RANKS] * 2
    assert names["PUSH_PULL"] == (STEPS + 1) * RANKS
    assert names["APPLY"] >= 2 * STEPS * RANKS and names["WAIT"] > 0
    spans = [event for event in told if event.get("name") == "PUSH_PULL"]
    assert all(event["dur"] > 0 and "staleness" in event["args"]["detail"] for event in spans)
    picture = tmp_path / "staleness.svg"
    assert draw([str(timeline), str(picture)]) == 0
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_sync_tables_have_the_same_bits_on_any_number_of_servers() -> None:
    command = launcher_command(3, "local", str(WORKERS / "server_counts.py"))
    output = run(command, timeout=120).expect_success().output
    lines = [line.partition("SERVERS ")[2] for line in output.splitlines()]
    rows = [json.loads(line) for line in lines if line]
    assert [row["number"] for row in rows] == [1, 2, 3]
    assert len(rows[0]["digests"]) == len(set(rows[0]["digests"].values())) == 5
    assert rows[0]["digests"] == rows[1]["digests"] == rows[2]["digests"]
    assert all(row["folded"] for row in rows)


def test_what_is_no_timeline_is_told(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    for text in ("", "{}", "[]"):
        wrong.write_text(text)
        assert draw([str(wrong), str(tmp_path / "out.svg")]) == 2
