"""mydist.bench in a job of one rank: problems, turns, rows; no result goes unchecked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from mydist.bench import contest
from mydist.bench.implementations import Call
from mydist.bench.peers import Times, make_peers
from mydist.bench.problem import COLLECTIVES, Plan, Problem, Shape, WrongResult
from mydist.bench.results import (
    Measured,
    Subject,
    bandwidths,
    format_size,
    format_table,
    make_row,
    parse_size,
    read_json,
    write_json,
)

LARGE = 128 << 10
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


class Recorded:
    """Right on one rank, where allreduce changes nothing; wrong until all ranks are done."""

    def __init__(
        self, name: str, log: list[str], wrong_at: int | None = None, settles_after: int = 0
    ) -> None:
        self.name, self._log, self._wrong_at, self.calls = name, log, wrong_at, 0
        self._settles_after = settles_after

    def prepare(self, problem: Problem) -> Call:
        self._log.append(f"{self.name}:{problem.shape.size_bytes}")
        self._input = problem.input

        def call() -> torch.Tensor:
            self.calls += 1
            return problem.input.add_(2 if self.calls - 1 == self._wrong_at else 1)

        return call

    def barrier(self) -> None:
        pass

    def await_others(self) -> None:
        self._input.sub_(1)

    def is_settled(self) -> bool:
        return self.calls >= self._settles_after


class Separate:
    name = "separate"

    def __init__(self, log: list[str], plan: Plan) -> None:
        self._log, self._plan = log, plan

    def run(self, timeout_s: float = 1.0) -> Times:
        self._log.append(f"{self._plan.op} by {self.name}")
        times = [5.0] * 3
        return {(self.name, size): Measured(list(times), 2.0, 4.0) for size in self._plan.sizes}


def plan_of(*sizes: int, rounds: int = 2) -> Plan:
    return Plan("allreduce", sizes, torch.float32, rounds, 3)


@pytest.mark.usefixtures("job")
def test_all_take_turns_in_every_round_and_have_rows_with_the_bound() -> None:
    log: list[str] = []
    plan = plan_of(8, LARGE)
    rows = contest.measure(plan, [Recorded("a", log), Recorded("b", log)], [Separate(log, plan)])
    assert log == ["a:8", "b:8", f"a:{LARGE}", f"b:{LARGE}", "allreduce by separate"] * 2
    assert [(row.size_bytes, row.impl, row.iterations) for row in rows] == [
        (size, impl, 6) for size in (8, LARGE) for impl in ("a", "b", "separate")
    ]
    small, large = (row for row in rows if row.impl == "separate")
    assert small.bound_us is small.efficiency is None
    assert large.bound_us is not None and large.bound_us > 0
    assert large.efficiency == pytest.approx(large.bound_us / 5.0)
    assert large.context_switches == pytest.approx(8.0 / 6)
    assert large.cpu_seconds_per_gb == pytest.approx(4.0 / (6 * LARGE / 1e9))


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    ("size", "settles_after", "warm_ups"),
    # At least two; until it has settled; at most as many as take little time.
    [(8, 0, 2), (8, 50, 50), (8, 5000, 1000), (8 << 20, 50, 8), (0, 5000, 1000)],
)
def test_times_are_taken_once_calls_have_settled(
    size: int, settles_after: int, warm_ups: int
) -> None:
    contender = Recorded("a", [], settles_after=settles_after)
    assert len(contest.run_size(plan_of(size), contender, size).times_us) == 3
    assert contender.calls == warm_ups + 3


@pytest.mark.usefixtures("job")
def test_no_result_goes_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong_at in (0, 1, 4):
        with pytest.raises(WrongResult, match="b: allreduce of 8 bytes gave a wrong result"):
            contest.measure(plan_of(8), [Recorded("a", []), Recorded("b", [], wrong_at)], [])
    monkeypatch.setattr(contest, "_FALSIFIED", "a")
    with pytest.raises(WrongResult, match="a: allreduce"):
        contest.run_size(plan_of(8), Recorded("a", []), 8)


def result_for(op: str, rank: int, inputs: list[torch.Tensor]) -> torch.Tensor:
    """What the op is defined to give, computed from all inputs."""
    total = torch.stack([tensor.double() for tensor in inputs]).sum(0)
    own = slice(*(len(total) // len(inputs) * part for part in (rank, rank + 1)))
    result = {
        "allreduce": lambda: total,
        "allgather": lambda: torch.cat(inputs),
        "broadcast": lambda: inputs[0].clone(),
        "alltoall": lambda: torch.cat([tensor[own] for tensor in inputs]),
        "reducescatter": lambda: total[own],
    }[op]()
    return result.to(inputs[0].dtype)


@pytest.mark.parametrize("op", [op for op in COLLECTIVES if op != "barrier"])
def test_right_results_pass_and_wrong_ones_are_told(op: str) -> None:
    for ranks in (1, 2, 3, 8):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64):
            problems = [Problem(Shape(op, dtype, 100, rank, ranks)) for rank in range(ranks)]
            for iteration in (3, 4):
                for problem in problems:
                    problem.fill(iteration)
                for rank, problem in enumerate(problems):
                    right = result_for(op, rank, [p.input for p in problems])
                    problem.check(right, iteration, "x")
    with pytest.raises(WrongResult, match=f"x: {op} of 100 bytes gave a wrong result on rank 7"):
        problems[7].check(right, 5, "x")  # The result of another iteration.
    right[1] += 1
    with pytest.raises(WrongResult, match="element 1 of"):
        problems[7].check(right, 4, "x")
    with pytest.raises(WrongResult, match="elements on rank 7, expected"):
        problems[7].check(right[1:], 4, "x")


@pytest.mark.parametrize("names", [("RANK", "WORLD_SIZE"), OPEN_MPI])
def test_hosts_can_be_pretended_under_every_launcher(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", *OPEN_MPI):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MYDIST_HOST_ID", "")
    for rank, host in enumerate("0011"):
        for name, value in zip(names, (rank, 4), strict=True):
            monkeypatch.setenv(name, str(value))
        contest.pretend_hosts(2)
        assert os.environ["MYDIST_HOST_ID"] == f"fake-host-{host}"


def test_sizes_and_bandwidths() -> None:
    for text, size in (("8", 8), ("64K", 65536), ("4m", 4 << 20), ("1G", 1 << 30)):
        assert parse_size(text) == size
        assert parse_size(format_size(size)) == size
    for text in ("", "0", "-8", "K", "4T", "1.5M"):
        with pytest.raises(ValueError, match="expected a positive number such as 8, 64K"):
            parse_size(text)
    expected = [(1.0, 1.5), (4.0, 3.0), (1.0, 1.0), (1.0, 0.75), (1.0, 0.75)]
    for op, speeds in zip(COLLECTIVES, expected, strict=False):
        assert bandwidths(op, 4, 1_000_000, 1000.0) == pytest.approx(speeds)


def test_rows_are_of_medians_and_come_back_from_json(tmp_path: Path) -> None:
    measured = Measured([3000.0, 1000.0], 0.5, 4.0)
    measured.add(Measured([2000.0], 0.25, 2.0))
    subject = Subject("allreduce", "x", "float32", 4, 8_000_000)
    row = make_row(subject, measured, bound_us=500.0)
    assert (row.min_us, row.p50_us, row.p99_us, row.iterations) == (1000, 2000, 3000, 3)
    assert (row.algbw_gbs, row.busbw_gbs) == pytest.approx((4.0, 6.0))
    assert (row.context_switches, row.efficiency) == (2.0, 0.25)
    assert row.cpu_seconds_per_gb == pytest.approx(0.75 / 0.024)
    barrier = make_row(Subject("barrier", "x", "float32", 2, 0), Measured([1.0], 1.0, 3.0))
    assert barrier.algbw_gbs is barrier.busbw_gbs is barrier.cpu_seconds_per_gb is None
    path = tmp_path / "rows.json"
    write_json([row, barrier], path)
    names = "op impl dtype ranks size_bytes iterations min_us p50_us p99_us algbw_gbs busbw_gbs"
    more = "bound_us efficiency context_switches cpu_seconds_per_gb"
    assert set(json.loads(path.read_text())[0]) == {*names.split(), *more.split()}
    assert read_json(path) == [row, barrier]
    lines = [line.split() for line in format_table([row, barrier]).splitlines() if line]
    assert [line[:3] for line in lines[1:]] == [
        ["allreduce", "8000000", "x"],
        ["barrier", "-", "x"],
    ]


def test_a_table_of_steps_has_their_exposed_communication_and_no_bandwidth() -> None:
    rows = [
        make_row(Subject("step-gpt", impl, "float32", 2, 8), Measured([time_us]), bound_us=500.0)
        for impl, time_us in (("compute", 500.0), ("mydist-local", 612.5))
    ]
    heading, *lines = (line.split() for line in format_table(rows).replace(" us", "").splitlines())
    column = heading.index("exposed")
    assert [line[column] for line in lines] == ["0.00", "112.50"]
    assert not {"busbw", "algbw"} & set(heading)
    collective = make_row(Subject("allreduce", "x", "float32", 2, 8), Measured([1.0]), 0.5)
    assert collective.exposed_us is None
    heading = format_table([collective]).split()
    assert "exposed" not in heading and "busbw" in heading


def test_peers_that_cannot_run_here_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    told: list[str] = []
    names = ("openmpi", "gloo", "mydist-mpi", "torch-gloo", "horovod")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert make_peers(names, plan_of(8), 2, True, told.append) == []
    assert make_peers(names[:1], plan_of(8), 2, False, told.append) == []
    assert told == [
        "without openmpi: mpicxx and mpirun are not on PATH (Debian: libopenmpi-dev)",
        "without gloo: no C++ compiler is on PATH (Debian: g++), and none in CXX",
        "without mydist-mpi: it has been removed; start mydistrun with --mpi",
        "without horovod: the Python package horovod is not installed",
        "without openmpi: it is started on one host only",
    ]
