"""python -m mydist.debug: the verdict on dumps made here, and on files that are no good."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mydist.debug.__main__ import main
from mydist.debug.dumps import read_folder
from mydist.debug.verdict import rank_text, verdict

SECOND = 1_000_000_000


def record(name: str, **fields: Any) -> dict[str, Any]:
    """A record as the core writes it; done, unless told otherwise."""
    row = {"n": 1, "set": 0, "run": 0, "op": "allreduce", "dtype": "float32", "shape": [4]}
    row |= {"dims": 1, "elements": 4, "device": "CPU", "reduce": "Sum", "name": name}
    row |= {"state": "done", "submitted_ns": SECOND, "begun_ns": SECOND, "ended_ns": SECOND + 1}
    return {**row, **fields}


def waiting(name: str, **fields: Any) -> dict[str, Any]:
    times = {"submitted_ns": 2 * SECOND, "begun_ns": 0, "ended_ns": 0}
    return record(name, **{"state": "waiting", **times, **fields})


def steps(count: int) -> list[dict[str, Any]]:
    return [record(f"grad.{run % 3}", run=run) for run in range(1, count + 1)]


def dump(
    folder: Path, rank: int, records: Sequence[dict[str, Any]], size: int = 3, **head: Any
) -> Path:
    first = {"mydist_flight_recorder": 1, "version": "1.0", "rank": rank, "size": size}
    first |= {"host": f"host-{rank}", "pid": 70 + rank, "reason": "stall", "message": ""}
    first |= {"wall_ns": 100 * SECOND, "monotonic_ns": 12 * SECOND, "started_wall_ns": SECOND}
    first |= {"submitted": len(records), "dropped": 0, "process_sets": {}, **head}
    rows = [{**row, "n": number} for number, row in enumerate(records, 1)]
    lines = [json.dumps(row) for row in (first, *rows, {"end": len(rows)})]
    path = folder / f"flight_recorder_rank{rank}.json"
    path.write_text("\n".join(lines) + "\n")
    return path


def text_of(folder: Path) -> str:
    return verdict(*read_folder(folder))


def test_a_rank_that_has_not_submitted_is_behind(tmp_path: Path) -> None:
    for rank in (0, 1):
        dump(tmp_path, rank, [*steps(5), waiting("loss")])
    dump(tmp_path, 2, steps(5))
    lines = text_of(tmp_path).splitlines()
    assert lines[0] == (
        "Verdict: rank 2 is behind: it has not submitted allreduce 'loss', for which ranks 0, 1 "
        "have waited 10.0 s. Rank 2: waits for no rank; its last operation was allreduce 'grad.1', "
        "11.0 s before it wrote its file."
    )
    assert lines[2].split() == ["rank", "host", "executed", "submitted", "at", "its", "dump"]
    assert lines[3].startswith("0     host-0 (pid 70)  5         6          waits at allreduce")
    assert len(lines) == 6


def test_a_name_of_an_earlier_step_does_not_count_as_submitted(tmp_path: Path) -> None:
    dump(tmp_path, 0, [*steps(3), waiting("grad.1")], size=2)
    dump(tmp_path, 1, steps(3), size=2)
    assert "rank 1 is behind: it has not submitted allreduce 'grad.1'" in text_of(tmp_path)


def test_a_rank_that_has_executed_it_meanwhile_is_not_behind(tmp_path: Path) -> None:
    running = {"state": "running", "begun_ns": 3 * SECOND, "run": 4}
    dump(tmp_path, 0, [*steps(3), waiting("grad.1", **running)], size=2)
    dump(tmp_path, 1, steps(4), size=2)
    assert "Verdict: rank 0 is inside allreduce 'grad.1' for 10.0 s" in text_of(tmp_path)


def test_names_that_are_nearly_the_same_stand_side_by_side(tmp_path: Path) -> None:
    dump(tmp_path, 0, [waiting("encoder.layer.0.weight")])
    dump(tmp_path, 1, [waiting("encoder.layer.0.weight")])
    dump(tmp_path, 2, [waiting("encoder.layers.0.weight")])
    text = text_of(tmp_path)
    assert "Verdict: the ranks wait at different names, side by side:" in text
    assert "    ranks 0, 1  allreduce 'encoder.layer.0.weight'  (float32 [4])\n" in text
    assert "    rank 2      allreduce 'encoder.layers.0.weight'  (float32 [4])\n" in text
    assert "Also:" not in text


def test_calls_without_a_name_that_differ_in_number(tmp_path: Path) -> None:
    dump(tmp_path, 0, [waiting("allreduce.noname.7")], size=2)
    dump(tmp_path, 1, [waiting("allreduce.noname.8")], size=2)
    assert "one side has made more calls than the other" in text_of(tmp_path)


def test_different_orders_are_told(tmp_path: Path) -> None:
    dump(tmp_path, 0, [waiting("alpha")], size=2)
    dump(tmp_path, 1, [waiting("zulu")], size=2)
    text = text_of(tmp_path)
    assert "Verdict: the ranks wait for each other: each has not submitted" in text
    assert "    rank 0  allreduce 'alpha'" in text and "    rank 1  allreduce 'zulu'" in text


STEP = ["2.bias", "2.weight", "loss"]


def done(names: Sequence[str]) -> list[dict[str, Any]]:
    return [record(name, run=run) for run, name in enumerate(names, 1)]


def test_a_rank_that_skips_a_collective_is_named(tmp_path: Path) -> None:
    before = done([*STEP * 20, *STEP[:2]])
    dump(tmp_path, 0, [*before, waiting("loss")], size=2)
    # The gradient of the same name is submitted anew.
    dump(tmp_path, 1, [*before, waiting("2.bias"), waiting("2.weight")], size=2)
    text = text_of(tmp_path)
    assert text.startswith("Verdict: the ranks wait for each other: ")
    assert (
        "    rank 0  allreduce 'loss'  (float32 [4])\n"
        "    rank 1  allreduce '2.bias' and 1 more  (float32 [4])\n"
        "  After allreduce '2.weight' (the 62nd collective) rank 0 submitted allreduce 'loss', and "
        "rank 1 allreduce '2.bias'. In earlier steps 'loss' came there: rank 1 has skipped it.\n"
    ) in text
    assert "Also:" not in text and "behind" not in text


@pytest.mark.parametrize(
    ("earlier", "here", "there", "told"),
    [
        (STEP * 4, "2.bias", "new", "In earlier steps '2.bias' came there: rank 1 has left this"),
        (STEP * 4, "2.bias", "loss", "In earlier steps '2.bias' came there: rank 1 has left this"),
        ([*STEP * 2, "accuracy", *STEP * 2], "2.bias", "accuracy", None),
        ([*STEP * 2, "accuracy", *STEP * 2], "accuracy", "2.bias", None),
        (["0.bias", *STEP], "2.bias", "accuracy", None),  # No step has come before.
    ],
)
def test_no_skip_is_told_that_the_records_do_not_show(
    tmp_path: Path, earlier: list[str], here: str, there: str, told: str | None
) -> None:
    dump(tmp_path, 0, [*done(earlier), waiting(here)], size=2)
    dump(tmp_path, 1, [*done(earlier), waiting(there)], size=2)
    text = text_of(tmp_path)
    assert (
        f"  After allreduce 'loss' (the {len(earlier)}th collective) rank 0 submitted allreduce "
        f"'{here}', and rank 1 allreduce '{there}'."
    ) in text
    assert "skipped" not in text
    assert told in text if told else "In earlier steps" not in text


def test_names_that_are_alike_and_known_are_not_meant_to_be_one(tmp_path: Path) -> None:
    before = done([f"layer.{number % 4}.weight" for number in range(21)])
    dump(tmp_path, 0, [*before, waiting("layer.1.weight")])
    dump(tmp_path, 1, [*before, waiting("layer.2.weight")])
    dump(tmp_path, 2, before)
    text = text_of(tmp_path)
    assert text.startswith("Verdict: the ranks wait for each other: ")
    assert "In earlier steps 'layer.1.weight' came there: rank 1 has skipped it.\n" in text
    assert "\n  Rank 2 has submitted none of them. Rank 2: waits for no rank; " in text
    assert "Also:" not in text


def test_ranks_that_set_part_after_different_collectives(tmp_path: Path) -> None:
    # Rank 0 awaits 'loss' only after it has submitted the next one.
    before = done([*STEP * 3, "2.bias", "2.weight"])
    late = record("2.bias", run=12)
    dump(tmp_path, 0, [*before, waiting("loss"), late], size=2)
    dump(tmp_path, 1, [*before, late, waiting("2.weight")], size=2)
    assert (
        "  Rank 0 submitted allreduce 'loss' after allreduce '2.weight' (the 11th collective), and "
        "rank 1 allreduce '2.weight' after allreduce '2.bias' (the 12th collective). In earlier "
        "steps 'loss' came after '2.weight': rank 1 has skipped it.\n"
    ) in text_of(tmp_path)


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ({"shape": [5]}, "shape [5]"),
        ({"dtype": "float64"}, "dtype float64"),
        ({"op": "broadcast", "reduce": "", "root": 1}, "operation broadcast, reduction –, root 1"),
        ({"reduce": "Max"}, "reduction Max"),
        ({"device": "GPU"}, "device GPU"),
    ],
)
def test_what_the_ranks_disagree_on(tmp_path: Path, fields: dict[str, Any], row: str) -> None:
    refused = {"state": "failed", "code": "MISMATCH", "begun_ns": 0}
    dump(tmp_path, 0, [record("x", **refused)])
    dump(tmp_path, 1, [record("x", **refused)])
    dump(tmp_path, 2, [record("x", **{**refused, **fields})])
    text = text_of(tmp_path)
    assert text.startswith("Verdict: the ranks disagree on 'x':\n    ranks 0, 1  ")
    assert f"\n    rank 2      {row}\n" in text


def test_what_the_job_has_got_over_comes_last(tmp_path: Path) -> None:
    refused = {"state": "failed", "code": "MISMATCH", "begun_ns": 0}
    for rank in range(2):
        records = [record("x", **refused, shape=[rank + 1]), *steps(3)]
        dump(tmp_path, rank, [*records, *([] if rank else [waiting("loss")])], size=2)
    text = text_of(tmp_path)
    assert text.startswith("Verdict: rank 1 is behind: it has not submitted allreduce 'loss'")
    assert "\nAlso: the ranks disagree on 'x':\n" in text


def test_what_waits_for_the_same_rank_is_one_finding(tmp_path: Path) -> None:
    gradients = [waiting(f"grad.{number}") for number in range(200)]
    dump(tmp_path, 0, gradients, size=2)
    dump(tmp_path, 1, [record("x", state="failed", code="TYPE_ERROR")], size=2)
    text = text_of(tmp_path)
    assert "it has not submitted allreduce 'grad.0' and 199 more, for which rank 0" in text
    assert "its last operation was allreduce 'x' (TYPE_ERROR), " in text
    assert "Also:" not in text


def test_rows_of_a_gather_may_differ(tmp_path: Path) -> None:
    for rank in range(3):
        dump(tmp_path, rank, [record("g", op="allgather", reduce="", shape=[rank, 2], run=1)])
    assert "Verdict: no rank waits for another, and all have executed" in text_of(tmp_path)


def test_other_names_at_one_number_are_a_disagreement(tmp_path: Path) -> None:
    dump(tmp_path, 0, [record("a", run=9)], size=2)
    dump(tmp_path, 1, [record("b", run=9)], size=2)
    text = text_of(tmp_path)
    assert text.startswith("Verdict: the ranks disagree at operation 9:\n    rank 0  name a\n")


def test_a_rank_without_a_dump(tmp_path: Path) -> None:
    lost = {"state": "failed", "code": "PEER_LOST", "ended_ns": 4 * SECOND}
    for rank in (0, 1):
        message = {"reason": "failure", "message": "rank 2 was killed"}
        dump(tmp_path, rank, [*steps(2), waiting("grad.0", **lost)], **message)
    text = text_of(tmp_path)
    assert text.startswith("Verdict: rank 2 has left no dump, and is probably dead, stopped or ")
    assert "Ranks 0, 1 have waited 2.0 s for allreduce 'grad.0'." in text
    assert "Ranks 0, 1 said: rank 2 was killed" in text
    assert "Note: Rank 2 left no dump" in text


def test_a_rank_that_is_waited_for_does_not_say_that_it_waits(tmp_path: Path) -> None:
    to_one = "allreduce 'loss' waits for rank 1 (host h, pid 7) for 2 s; ready on ranks 0, 2. Every"
    for rank in range(3):
        dump(tmp_path, rank, [], message=to_one)
    text = text_of(tmp_path)
    assert "\nRank 1 was told that ranks 0, 2 wait for it in allreduce 'loss'.\n" in text
    assert "\nRanks 0, 2 said: allreduce 'loss' waits for rank 1 (host h, pid 7) for 2 s; " in text


def test_several_ranks_that_are_waited_for_were_told(tmp_path: Path) -> None:
    to_several = (
        "allreduce 'a' and 2 more tensors ('b', 'c') wait for ranks 1-3 (hosts x, y) for 2 s; "
        "ready on rank 0.\n  'a' is ready on rank 0"
    )
    for rank in (1, 2, 3):
        dump(tmp_path, rank, [], size=4, message=to_several)
    told = "were told that rank 0 waits for {} in allreduce 'a' and 2 more.\n"
    assert "\nRanks 1-3 " + told.format("them") in text_of(tmp_path)
    (tmp_path / "flight_recorder_rank2.json").unlink()
    assert "\nRanks 1, 3 " + told.format("ranks 1-3") in text_of(tmp_path)


def test_the_ends_of_several_programs(tmp_path: Path) -> None:
    for rank in range(3):
        dump(tmp_path, rank, [], message="an exception ended its program" if rank else "")
    assert "\nRanks 1, 2 said: exceptions ended their programs\n" in text_of(tmp_path)


def test_sets_have_their_own_members_and_joined_ranks_are_not_behind(tmp_path: Path) -> None:
    sets = {"process_sets": {"4": [0, 2]}}
    dump(tmp_path, 0, [waiting("a", set=4), waiting("b")], **sets)
    dump(tmp_path, 1, [waiting("join", op="join")], **sets)
    dump(tmp_path, 2, [waiting("b")], **sets)
    text = text_of(tmp_path)
    assert "rank 2 is behind: it has not submitted allreduce 'a' of process set 4" in text
    assert "all ranks have submitted allreduce 'b', and it has not begun" in text
    assert "rank 1 is behind" not in text


def test_a_transfer_concerns_two_ranks(tmp_path: Path) -> None:
    transfer = {"op": "send/recv", "reduce": "", "ranks": [2, 0]}
    dump(tmp_path, 0, [waiting("t", **transfer)])
    dump(tmp_path, 1, [])
    dump(tmp_path, 2, [record("t", **transfer)])
    assert "rank 2 is behind: it has not submitted send/recv 't', for which rank 0 has" in text_of(
        tmp_path
    )


def test_a_cut_file_another_format_and_no_dump_are_told(tmp_path: Path) -> None:
    for rank in range(2):
        dump(tmp_path, rank, steps(4))
    cut = tmp_path / "flight_recorder_rank1.json"
    cut.write_bytes(cut.read_bytes()[:-60])
    other = dump(tmp_path, 2, [])
    other.write_text(other.read_text().replace('recorder": 1', 'recorder": 2'))
    (tmp_path / "flight_recorder_rank9.json").write_bytes(b"\xff\x00 no JSON")
    text = text_of(tmp_path)
    assert "Note: The dump of rank 1 is cut after 3 records." in text
    assert "Note: The dump of rank 2 is ignored: its format is 2, and mydist 1.0 wrote it" in text
    assert "Note: The dump of rank 9 is ignored: it is not a flight recorder of mydist." in text


def test_dumps_of_several_jobs_or_moments_are_told(tmp_path: Path) -> None:
    dump(tmp_path, 0, steps(1), size=2)
    dump(tmp_path, 1, steps(1), size=3, wall_ns=90 * SECOND, started_wall_ns=900 * SECOND)
    text = text_of(tmp_path)
    assert "Note: The dumps are of jobs of different sizes" in text
    assert "Note: The ranks did not start at the same time" in text
    assert "Note: The dump of rank 1 is 10.0 s older than the newest one." in text


@pytest.mark.parametrize("made", ["nothing", "a file", "an empty folder", "a broken dump"])
def test_a_wrong_folder_is_one_line_and_exit_code_2(
    tmp_path: Path, made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dumps"
    if made == "a file":
        folder.write_text("")
    elif made != "nothing":
        folder.mkdir()
    if made == "a broken dump":
        (folder / "flight_recorder_rank0.json").write_text("{}\n")
    assert main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mydist.debug: ") and error.count("\n") == 1


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    dump(tmp_path, 0, steps(1), size=1)
    code = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv[1:] = [sys.argv[1]];"
        "runpy.run_module('mydist.debug', run_name='__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("Verdict: no rank waits for another")


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    dump(tmp_path, 0, steps(1), size=1)
    command = f"'{sys.executable}' -m mydist.debug '{tmp_path}' | true; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_ranks_are_named_in_short() -> None:
    assert rank_text([3]) == "rank 3"
    assert rank_text([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7, 8"
