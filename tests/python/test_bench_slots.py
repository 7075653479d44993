"""G2, the benchmark of gradients in slots: what it counts, and what it does not let pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import mydist as md
from mydist.bench.problem import WrongResult

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.usefixtures("_repository_on_path")
SHAPES = [(3, 2), (5,), (4,)]


@pytest.fixture
def _repository_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.parametrize(
    ("launches", "collectives", "extra"),
    [
        (100, 0, 0.0),
        (108, 8, 0.0),  # Of NCCL, one for each bucket.
        (109, 8, 0.125),  # Another kernel in one of the steps.
        (116, 16, 1.0),  # NCCL twice for each bucket.
        (108, 7, 0.125),  # Two buckets were reduced together; what is more is no less for it.
        (116, 0, 2.0),
    ],
)
def test_launches_that_are_neither_torchs_nor_nccls_are_extra(
    launches: int, collectives: int, extra: float
) -> None:
    from benchmarks.jobs.gpu_slots import extra_launches
    from benchmarks.jobs.profiled import Work

    plain, ours = Work(4, 100, 0, 0), Work(4, launches, collectives, 0)
    assert extra_launches(plain, ours, buckets=2) == extra


@pytest.mark.parametrize(
    ("plain", "launches", "collectives", "ranks", "message"),
    [
        (99, 107, 8, 2, "99 launches seen of steps that add to 100 gradients"),
        (100, 107, 8, 2, "107 launches seen, 8 of NCCL, where torch alone has 100"),
        (100, 99, 0, 1, "99 launches seen, 0 of NCCL, where torch alone has 100"),
        (100, 100, 0, 2, "no launch of NCCL seen"),
        (100, 108, 8, 2, ""),
        (100, 100, 0, 1, ""),
    ],
)
def test_a_profiler_that_has_missed_some_is_not_believed(
    plain: int, launches: int, collectives: int, ranks: int, message: str
) -> None:
    from benchmarks.jobs.gpu_slots import check_sight
    from benchmarks.jobs.profiled import Blind, Work

    def check() -> None:
        check_sight(Work(4, plain, 0, 0), Work(4, launches, collectives, 0), 25, ranks)

    if message:
        with pytest.raises(Blind, match=message):
            check()
    else:
        check()


def steps_in_slots(views: bool, given: float) -> None:
    """Three of them, checked."""
    from benchmarks.jobs.gpu_slots import InSlots

    trainee = InSlots(SHAPES, torch.device("cpu"))
    trainee.reducer.set_buffer_views(views)
    for _ in range(3):
        trainee.step([torch.full(shape, given) for shape in SHAPES])
    trainee.check(2.0)


@pytest.mark.usefixtures("job")
def test_gradients_that_lie_elsewhere_or_are_wrong_have_no_figures() -> None:
    steps_in_slots(views=True, given=2.0)
    with pytest.raises(WrongResult, match="do not lie side by side"):
        steps_in_slots(views=False, given=2.0)
    with pytest.raises(WrongResult, match="gradient 0 on rank 0 is not 2.0"):
        steps_in_slots(views=True, given=3.0)


@pytest.mark.usefixtures("job")
def test_what_is_copied_or_packed_after_the_first_step_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks.jobs import gpu_slots
    from benchmarks.jobs.figures import JobArguments

    arguments = JobArguments(Path("unused"), smoke=True)
    figures = gpu_slots.measure(arguments)
    assert figures["buckets"] >= 1
    assert figures["copied_bytes"] == figures["pack_bytes"] == figures["extra_launches"] == 0

    def make_anew(trainee: gpu_slots.Plain, given: Sequence[torch.Tensor]) -> None:
        trainee.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(trainee.module(), given)

    packed = itertools.count(step=600)
    monkeypatch.setattr(gpu_slots.Plain, "step", make_anew)
    monkeypatch.setattr(md, "stats", lambda: {"pack_bytes": next(packed)})
    figures = gpu_slots.measure(arguments)
    assert figures["copied_bytes"] == 4 * (64 * 3 * 7 * 7 + 64 + 10 * 64)
    assert figures["pack_bytes"] == 200  # Three steps after the first one.


@pytest.mark.deep
def test_one_rank_and_two_run_in_host_memory(tmp_path: Path) -> None:
    from benchmarks.results import Results
    from benchmarks.suites import SUITES, Setting
    from benchmarks.targets import GPU_SLOTS, GPU_SLOTS2

    results = Results()
    setting = Setting(Path("unused"), tmp_path, smoke=True, timeout_s=120, device="cpu")
    for name, ranks in ((GPU_SLOTS, 1), (GPU_SLOTS2, 2)):
        SUITES[name](setting, results)
        figures = results.figures[name]
        assert figures["ranks"] == ranks
        assert figures["buckets"] >= 1
        assert figures["copied_bytes"] == figures["pack_bytes"] == 0


def why_not_measured(reasons: dict[str, str]) -> set[str]:
    """Of the rows of two ranks, when those of one have been measured."""
    from benchmarks.results import Results
    from benchmarks.targets import GPU_SLOTS, GPU_SLOTS2, GPU_TARGETS
    from benchmarks.verdicts import judge

    zeros = {"pack_bytes": 0.0, "copied_bytes": 0.0, "extra_launches": 0.0}
    results = Results(figures={GPU_SLOTS: zeros, GPU_SLOTS2: {}}, reasons=reasons)
    found = [v for v in judge(GPU_TARGETS, results) if v.row == "G2"]
    assert [v.verdict for v in found] == ["met"] * 3 + ["not measured"] * 3
    return {v.reason for v in found[3:]}


def test_two_ranks_that_did_not_share_the_gpu_say_so() -> None:
    from benchmarks.targets import GPU_SLOTS2

    told = "without two ranks on one GPU: staged"
    assert why_not_measured({GPU_SLOTS2: told}) == {told}
    expected = {"two ranks did not come to share the GPU over NCCL"}
    assert why_not_measured({}) == expected


@pytest.mark.parametrize(
    ("device", "ranks", "choice", "missing"),
    [
        ("cuda", 2, "staged through pinned memory", True),
        ("cuda", 2, None, True),
        ("cuda", 2, "NCCL between all ranks", False),
        ("cuda", 1, None, False),
        ("cpu", 2, None, False),
    ],
)
def test_only_ranks_that_share_a_gpu_over_nccl_are_measured(
    device: str,
    ranks: int,
    choice: str | None,
    missing: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from benchmarks.jobs.gpu_sharing import do_without_sharing
    from mydist.optim.explain import Explanation, Fact

    facts = {} if choice is None else {"GPU path": Fact(choice, "")}
    monkeypatch.setattr(md, "size", lambda: ranks)
    monkeypatch.setattr(md, "explain", lambda: Explanation(facts))
    assert do_without_sharing(torch.device(device)) == missing
    assert ("without two ranks on one GPU" in capsys.readouterr().err) == missing
