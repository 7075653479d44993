"""What process groups tell: counts, timeline, flight recorder, and ranks that fall silent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from deep import deep

from multiproc.job import WORKERS, launch
from mydist.debug.dumps import read_folder
from mydist.debug.verdict import verdict

WORKER = str(WORKERS / "process_group_watched.py")
NP = 3
SUMS = 5
VICTIM = 1
HEARTBEAT_S = 2.0
WARNING_S = 1.0


def events_of(path: Path) -> list[dict[str, Any]]:
    """Without the names of processes and threads."""
    return [event for event in json.loads(path.read_text()) if event["ph"] != "M"]


def tracks_of(path: Path) -> set[str]:
    events = json.loads(path.read_text())
    return {event["args"]["name"] for event in events if event["name"] == "thread_name"}


@pytest.mark.parametrize("how", ["without_init", "with_init"])
def test_operations_are_in_the_timeline_and_counted(how: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    outcome = launch(NP, "local", WORKER, how, flags=["--timeline-filename", str(path)])
    outcome.expect_success()
    rows = re.findall(r"^\[(\d)\]<stdout>:STATS (.*)$", outcome.output, re.MULTILINE)
    stats = {int(rank): json.loads(text) for rank, text in rows}
    assert sorted(stats) == list(range(NP))
    for rank, row in stats.items():
        world = row["groups"]["0"]
        assert (world["operations"], world["bytes"]) == (SUMS, SUMS * 4 * 4)
        messages = [0, 0, 0]
        if rank < 2:
            pair = row["groups"]["1"]
            messages = [pair[k] for k in ("messages_sent", "messages_received", "message_bytes")]
        assert messages == [[1, 0, 12], [0, 1, 12], [0, 0, 0]][rank]
        if how == "with_init":
            assert row["all"]["group_operations"] == SUMS
            assert row["all"]["group_message_bytes"] == messages[2]
    if how == "with_init":
        events = events_of(path)
    else:
        assert not path.exists()
        files = [tmp_path / f"trace.rank{rank}.json" for rank in range(NP)]
        assert all({event["pid"] for event in events_of(f)} == {r} for r, f in enumerate(files))
        events = [event for file in files for event in events_of(file)]
        path = files[0]
    assert {"group '0'", "group '1'"} <= tracks_of(path)
    for rank in range(NP):
        own = [event for event in events if event["pid"] == rank]
        # Rank 0 may write the beginning of an operation before its end: then it is "B", else "X".
        sums = [e for e in own if e["ph"] in ("B", "X") and e["name"] == "ALLREDUCE"]
        assert [e["args"]["detail"].partition(", ")[0] for e in sums] == [
            f"operation {number}" for number in range(1, SUMS + 1)
        ]
    (sent,) = [event for event in events if event["name"] == "SENT"]
    assert sent["args"]["detail"] == "12 bytes to rank 1, tag 7"


def test_a_message_that_does_not_come_is_told_and_ends_in_time(tmp_path: Path) -> None:
    limits = {"MYDIST_STALL_WARNING_SECONDS": "0.4", "MYDIST_STALL_SHUTDOWN_SECONDS": "2"}
    outcome = launch(NP, "local", WORKER, "late", str(tmp_path), env=limits).expect_success()
    sender = r"group '0': no message from rank 1 \(host \S+, pid \d+\) with tag 1 came within"
    for seconds in ("0.4", "0.8", "1.6"):
        assert re.search(rf"{sender} {seconds} s", outcome.output), outcome.output
    ((took, text),) = re.findall(r"LOST after ([\d.]+) s: (.*)", outcome.output)
    assert 2.0 <= float(took) < 3.5, outcome.output
    assert re.match(rf"TIMEOUT: {sender} 2.0 s", text), text


# Over Gloo only heartbeats have told how far the rank had come.
@pytest.mark.parametrize("backend", ["local", deep("gloo")])
def test_a_silent_rank_ends_operations_and_messages_of_the_others(
    backend: str, tmp_path: Path
) -> None:
    flags = ["--stall-check-warning-time-seconds", str(WARNING_S)]
    flags += ["--flight-recorder-dir", str(tmp_path)]
    environment = {"MYDIST_HEARTBEAT_TIMEOUT_SECONDS": str(HEARTBEAT_S)}
    outcome = launch(NP, backend, WORKER, "silent", flags=flags, env=environment)
    assert outcome.code != 0
    lost = re.findall(
        r"^\[(\d)\]<stdout>:LOST after ([\d.]+) s: (.*)$", outcome.output, re.MULTILINE
    )
    assert {rank for rank, _, _ in lost} == {"0", "2"}, outcome.output
    for _, seconds, text in lost:
        assert float(seconds) < HEARTBEAT_S + 1.5, outcome.output
        # Rank 0 watches the other two; rank 2 hears it from rank 0.
        assert text.startswith("PEER_LOST: group '0': "), text
        assert re.search(r"rank 1 \(host \S+, pid \d+\) has given no sign of life", text), text
        assert "a signal or a debugger has stopped it" in text
        last = rf"The last collective of rank {VICTIM} was allreduce 'group 0', number {SUMS}"
        assert re.search(
            last + r"(, as told \S+ s before)?; that of ranks 0, 2 was the same\.$", text
        )
    # While it waits, rank 0 warns.
    assert f"rank {VICTIM} (host " in outcome.output
    assert "did not take part within 1.0 s: a signal or a debugger has stopped it" in outcome.output
    report = outcome.output.partition("\nmydistrun: ")[2]
    assert report.startswith(f"rank {VICTIM} on host localhost (pid "), outcome.output
    assert "gave no sign of life" in report.splitlines()[0]
    assert "in allreduce 'group 0, operation 6'" in report
    last = rf"\n  last collective of rank {VICTIM}: allreduce 'group 0', number {SUMS}"
    assert re.search(last, report), report
    text = verdict(*read_folder(tmp_path, "groups"))
    assert text.startswith(f"Verdict: rank {VICTIM} has left no dump")
    assert "allreduce 'operation 6' of group '0'" in text
