"""Words and verdicts of the GPU check for what programs have printed and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.gpu_check.reports import count_tests, read_packing, read_sanitizer, read_verdicts
from scripts.gpu_check.steps import FAILED, MET, MISSED, NOT_MEASURED, PASSED, Reading

PASS = '<testcase name="a"/>'
FAIL = '<testcase name="b"><failure message="no"/></testcase>'
ERROR = '<testcase name="c"><error message="no"/></testcase>'
SKIP = '<testcase name="d" result="skipped"><skipped message="x_test.cc:7&#x0A;why"/></testcase>'


@pytest.mark.parametrize(
    ("cases", "words", "verdict"),
    [
        (PASS + PASS + SKIP, "2 passed, 0 failed, 1 skipped", PASSED),
        (PASS + FAIL + SKIP, "1 passed, 1 failed, 1 skipped", FAILED),
        (PASS + ERROR, "1 passed, 1 failed, 0 skipped", FAILED),
        (SKIP + SKIP, "0 passed, 0 failed, 2 skipped: why", NOT_MEASURED),
        ("", "0 passed, 0 failed, 0 skipped: there was none", NOT_MEASURED),
    ],
)
def test_tests_are_counted(tmp_path: Path, cases: str, words: str, verdict: str) -> None:
    for root in (
        f"<testsuite>{cases}</testsuite>",
        f"<testsuites><testsuite>{cases}</testsuite></testsuites>",
    ):
        report = tmp_path / "report.xml"
        report.write_text(root)
        assert count_tests(report) == Reading(words, verdict)


TABLE = """161 tensors, 25,557,032 numbers
                        chunk  blk   copy µs   ours µs   GB/s   GB/s   ratio  host µs  launches
pack                        0    0    100.00  {plain:8}   2900   2800    0.90     4.20  {launches}
pack, close together        0    0    100.00    150.00   2900   2000    0.67     4.20         1
pack, × 1/8                 0    0    100.00    101.00   2900   2850    0.99     4.20         1
pack to float16, × 1/8      0    0    100.00  {scaled:8}   2900   2850    0.90     4.20         1
"""


@pytest.mark.parametrize(
    ("plain", "scaled", "launches", "said", "verdict"),
    [
        ("103.00", "102.00", 1, "0.971 of the copy rate (pack)", MET),
        ("103.00", "111.00", 1, "0.901 of the copy rate (pack to float16, × 1/8)", MET),
        ("103.00", "111.20", 1, "0.899 of the copy rate (pack to float16, × 1/8)", MISSED),
        ("140.00", "111.00", 1, "0.714 of the copy rate (pack)", MISSED),
        ("103.00", "102.00", 2, "0.971 of the copy rate (pack)", MISSED),
    ],
)
def test_the_slowest_of_packing_scaling_casting_is_judged(
    plain: str, scaled: str, launches: int, said: str, verdict: str
) -> None:
    words = f"{said}, target 0.90; launches: {launches}, target 1"
    table = TABLE.format(plain=plain, scaled=scaled, launches=launches)
    assert read_packing(table) == Reading(words, verdict)


def test_no_table_is_no_figure() -> None:
    with pytest.raises(ValueError, match="no row 'pack'"):
        read_packing("bench_convert: skipped")


def test_every_process_that_was_checked_counts() -> None:
    clean, dirty = "===== ERROR SUMMARY: 0 errors", "===== RACECHECK SUMMARY: 2 hazards displayed"
    assert read_sanitizer(f"{clean}\n{clean}").words == "no error in 2 processes"
    assert read_sanitizer("no GPU was used") == Reading("0 errors in 0 processes", FAILED)
    assert read_sanitizer(f"{clean}\n{dirty}") == Reading("2 errors in 2 processes", FAILED)


def row(what: str, unit: str, measured: float | None, verdict: str, reason: str = "") -> dict:
    return {
        "what": what,
        "unit": unit,
        "measured": measured,
        "verdict": verdict,
        "reason": reason,
        "interval": None,
    }


def test_verdicts_of_the_benchmarks_are_told_in_a_line(tmp_path: Path) -> None:
    rows = [
        {**row("slower by", "%", 0.5, "met"), "interval": [-0.25, 0.75]},
        row("launches", "", 5.0, "missed"),
        row("waits", "", None, "not measured", "why"),
    ]
    path = tmp_path / "G.json"

    def read(rows: list[dict]) -> Reading:
        path.write_text(json.dumps({"verdicts": rows}))
        return read_verdicts(path)

    told = "slower by: 0.5 % (-0.25 to 0.75), met"
    assert read(rows[:1]) == Reading(told, MET)
    told += "; launches: 5, missed"
    assert read(rows[:2]) == Reading(told, MISSED)
    assert read(rows) == Reading(f"{told}; waits: -, not measured (why)", NOT_MEASURED)
    undecided = {**rows[0], "verdict": "undecided"}
    assert read([undecided, rows[0]]).verdict == MISSED
