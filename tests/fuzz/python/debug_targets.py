"""The files that flight recorders leave, as `python -m mydist.debug` reads them."""

from __future__ import annotations

from fuzz.python.target import Target, expect, expect_one_line
from mydist.debug.dumps import Dump, DumpError, parse_dump
from mydist.debug.verdict import verdict


def _expect_verdict(dumps: list[Dump], problems: list[str]) -> None:
    text = verdict(dumps, problems)
    expect(text.startswith("Verdict: "), f"a verdict, got {text!r}")
    expect(all(c.isprintable() or c == "\n" for c in text), f"a plain text, got {text!r}")
    text.encode()


def flight_dump(data: bytes) -> None:
    """One dump, and the verdict about it."""
    try:
        dump, problem = parse_dump(data)
    except DumpError as error:
        return expect_one_line(error)
    _expect_verdict([dump], [problem] if problem else [])


def flight_dumps(data: bytes) -> None:
    """Those of several ranks, each behind a byte 0, and what they are together."""
    by_rank: dict[int, Dump] = {}
    problems = []
    for part in data.split(b"\0"):
        try:
            dump, problem = parse_dump(part)
        except DumpError as error:
            expect_one_line(error)
            continue
        by_rank[dump.rank] = dump
        problems += [problem] if problem else []
    if by_rank:
        _expect_verdict([by_rank[rank] for rank in sorted(by_rank)], problems)


_HEAD = (
    '{"mydist_flight_recorder":1,"version":"1.0.0","rank":1,"size":4,"host":"h","pid":7,'
    '"reason":"stall","message":"allreduce waits","wall_ns":1795722744427423000,'
    '"monotonic_ns":15876000000000,"started_wall_ns":1795722700000000000,"submitted":2,"dropped":0,'
    '"process_sets":{"0":[0,1,2,3]}}\n'
)
_ROWS = (
    '{"n":0,"set":0,"run":0,"op":"allreduce","name":"grad","state":"done","dtype":"float32",'
    '"shape":[10],"dims":1,"reduce":"average","submitted_ns":1,"begun_ns":2,"ended_ns":3}\n'
    '{"n":1,"set":0,"run":-1,"op":"broadcast","name":"loss","state":"submitted","dtype":"float32",'
    '"shape":[],"dims":0,"root":0,"submitted_ns":4,"begun_ns":0,"ended_ns":0}\n'
)

TARGETS = (
    Target(
        "flight_dump",
        flight_dump,
        (
            (_HEAD + _ROWS + '{"end":2}\n').encode(),
            (_HEAD + _ROWS).encode(),
            _HEAD.replace('"size":4', '"size":1e999').encode(),
            (_HEAD + _ROWS.replace("grad", "\\ud800\\u001b[2J")).encode(),
        ),
    ),
    Target(
        "flight_dumps",
        flight_dumps,
        (
            # Rank 2 has another name, rank 3 another shape.
            b"\0".join(
                (_HEAD.replace('"rank":1', f'"rank":{rank}') + rows + '{"end":2}\n').encode()
                for rank, rows in (
                    (1, _ROWS),
                    (2, _ROWS.replace("loss", "loss.2")),
                    (3, _ROWS.replace('"shape":[]', '"shape":[7]')),
                )
            ),
        ),
    ),
)
