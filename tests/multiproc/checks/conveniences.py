"""Samplers, loaders, metrics, warm-up, seeds, logging and progress, as training loops use them."""

from __future__ import annotations

import builtins
import contextlib
import io
import logging
import random
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader, TensorDataset

import mydist as md
import mydist.metrics as metrics_module
from multiproc.checks.models import expect_equal_parameters, tiny_model
from multiproc.registry import check

LENGTH = 26  # 2 ranks share it evenly, 3 and 4 do not.


def everyone(mine: Any) -> list[Any]:
    return md.allgather_object(mine)


def expect_error(error: type[Exception], call: Any, *parts: str) -> None:
    try:
        call()
    except error as raised:
        missing = [part for part in parts if part not in str(raised)]
        assert not missing, f"{missing} not in: {raised}"
    else:
        raise AssertionError(f"no {error.__name__}")


@check(min_size=2)
def sampler_of_a_process_set() -> None:
    half = md.add_process_set(list(range(1, md.size())))
    try:
        if md.rank() == 0:
            expect_error(
                ValueError,
                lambda: md.DistributedSampler(LENGTH, process_set=half),
                "DistributedSampler: rank 0 is not in ProcessSet",
            )
            mine = []
        else:
            mine = list(md.DistributedSampler(LENGTH, tail="join", process_set=half))
        shares = everyone(mine)
        assert sorted(sum(shares, [])) == list(range(LENGTH))
    finally:
        md.remove_process_set(half)


@check()
def loader_deals_batches_out_and_counts_epochs() -> None:
    dataset = TensorDataset(torch.arange(LENGTH))
    loader = md.prepare_loader(DataLoader(dataset, batch_size=4, shuffle=True), tail="join")
    epochs = []
    for _ in range(2):
        mine = [batch.tolist() for (batch,) in loader]
        assert len(mine) == -(-len(loader.sampler) // 4)  # type: ignore[arg-type]
        epochs.append(everyone(sum(mine, [])))
        assert sorted(sum(epochs[-1], [])) == list(range(LENGTH))
    assert epochs[0] != epochs[1]


@check(min_size=2)
def uneven_shares_end_with_join() -> None:
    dataset = TensorDataset(torch.arange(2.0 * md.size() + 1))  # One more for rank 0.
    loader = md.prepare_loader(dataset, batch_size=1, tail="join", shuffle=False)
    weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), named_parameters=[("weight", weight)]
    )
    steps = 0
    for (sample,) in loader:
        optimizer.zero_grad()
        (weight * sample.double().sum()).backward()
        optimizer.step()
        steps += 1
    assert steps == (3 if md.rank() == 0 else 2)
    assert md.join() == 0, "rank 0 is the last"
    size = md.size()
    both = sum(range(2 * size)) / size
    wanted = -(both + (2.0 * size / size if md.rank() == 0 else 0.0))
    assert abs(weight.item() - wanted) < 1e-12, (weight.item(), wanted)


@check()
def metrics_average_over_all_ranks() -> None:
    metrics = md.Metrics()
    for step in range(3):
        value = 10.0 * md.rank() + step
        metrics.update(loss=torch.tensor(value), weight=md.rank() + 1)
        metrics.update(ones=1)
    terms = [(10.0 * r + s, r + 1) for r in range(md.size()) for s in range(3)]
    wanted = sum(v * w for v, w in terms) / sum(w for _, w in terms)
    got = metrics.compute()
    assert list(got) == ["loss", "ones"]
    assert abs(got["loss"] - wanted) <= 1e-12 * wanted and got["ones"] == 1.0
    assert all(other == got for other in everyone(got))


@check()
def metrics_are_one_allreduce() -> None:
    metrics = md.Metrics("one")
    metrics.update(**{f"metric{i}": i for i in range(20)})
    metrics.compute()
    metrics.reset()
    metrics.update(metric3=md.rank())
    with (
        mock.patch.object(metrics_module, "allreduce", wraps=md.allreduce) as allreduce,
        mock.patch.object(metrics_module, "allgather_object") as allgather_object,
    ):
        assert metrics.compute() == {"metric3": (md.size() - 1) / 2}
    assert (allreduce.call_count, allgather_object.call_count) == (1, 0)


@check(min_size=2)
def metrics_may_differ_between_ranks() -> None:
    metrics = md.Metrics()
    last = md.size() - 1
    if md.rank() == last:
        metrics.update(rare=7.0, loss=1.0)
    elif md.rank() > 0:
        metrics.update(loss=3.0)
    wanted = {"loss": (1.0 + 3.0 * (md.size() - 2)) / (md.size() - 1), "rare": 7.0}
    assert metrics.compute() == wanted
    metrics.reset()
    metrics.update(loss=2.0)
    if md.rank() == 0:
        metrics.update(late=5.0)  # A name that only one rank knows to be new.
    assert metrics.compute() == {"late": 5.0, "loss": 2.0}
    metrics.reset()
    expect_error(ValueError, metrics.compute, "no rank has updated a metric")
    if md.rank() == 0:
        metrics.update(never=1.0, weight=0)
    expect_error(ValueError, metrics.compute, "weights of 'never' add up to 0 on all ranks")


@check()
def warmup_of_a_distributed_optimizer_ends_at_the_scaled_rate() -> None:
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = md.DistributedOptimizer(
        md.scale_lr(optimizer), named_parameters=model.named_parameters()
    )
    warmup = md.WarmupLR(optimizer, steps=4)
    used = []
    for step in range(6):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(md.rank() + step), dtype=torch.float64)).sum().backward()
        optimizer.step()
        used += warmup.get_last_lr()
    size = md.size()
    wanted = [0.01 * (1 + (size - 1) * min(step, 4) / 4) for step in range(6)]
    torch.testing.assert_close(used, wanted, rtol=1e-12, atol=0.0)
    expect_equal_parameters(model)


@check(cases=[(False,), (True,)])
def main_rank_goes_first(local: bool) -> None:
    with tempfile.TemporaryDirectory() as mine:
        mark = Path(md.broadcast_object(mine)) / "prepared"
        with md.main_rank_first(local=local) as first:
            assert first == (md.rank() == 0), "all ranks of the test are on one host"
            assert mark.exists() != first
            if first:
                mark.touch()
        md.barrier()


@check(cases=[("ValueError",), ("SystemExit",)])
def a_failure_on_the_main_rank_is_told_to_the_others(name: str) -> None:
    kind: type[BaseException] = getattr(builtins, name)
    ran = False
    try:
        with md.main_rank_first():
            ran = True
            raise kind("disk full")
    except md.MydistError as error:
        assert md.rank() != 0 and not ran
        assert f"rank 0: {name}: disk full" in str(error), str(error)
    except kind as error:
        assert md.rank() == 0 and str(error) == "disk full"
    else:
        raise AssertionError("no error")
    md.barrier()


@check()
def only_rank_0_logs_and_shows_progress() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.getLogger("conveniences")
    logger.addHandler(handler)
    logger.propagate = False
    md.get_logger("conveniences").warning("once")
    md.get_logger("conveniences", all_ranks=True).warning("everywhere")
    logger.removeHandler(handler)
    place = f"[rank {md.rank()}/{md.size()}]"
    wanted = [f"{place} once"] if md.rank() == 0 else []
    assert written.getvalue().splitlines() == [*wanted, f"{place} everywhere"]
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
        bar = md.progress(range(3), "loop", interval=100)
    assert list(bar) == [0, 1, 2]
    assert ("loop [" in shown.getvalue()) == (md.rank() == 0), shown.getvalue()


@check()
def seeds_differ_by_rank_or_not() -> None:
    assert md.seed_everything(10) == 10 + md.rank()
    drawn = everyone((random.random(), torch.rand(()).item()))
    assert len(set(drawn)) == md.size()
    assert md.seed_everything(10, rank_offset=False) == 10
    drawn = everyone((random.random(), torch.rand(()).item()))
    assert len(set(drawn)) == 1


class Noise(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return torch.rand(())


@check()
def workers_of_the_ranks_draw_different_numbers() -> None:
    md.seed_everything(3, rank_offset=False)
    loader = md.prepare_loader(
        Noise(torch.arange(2 * md.size())), batch_size=2, num_workers=1, tail="drop"
    )
    drawn = everyone([value for batch in loader for value in batch.tolist()])
    assert len(set(sum(drawn, []))) == 2 * md.size(), drawn


@check(min_size=2)
def metrics_of_a_process_set() -> None:
    others = md.add_process_set(list(range(1, md.size())))
    try:
        if md.rank() == 0:
            expect_error(ValueError, lambda: md.Metrics(process_set=others), "Metrics: rank 0 is")
        else:
            metrics = md.Metrics(process_set=others)
            metrics.update(rank=md.rank())
            assert metrics.compute() == {"rank": md.size() / 2}
    finally:
        md.remove_process_set(others)
    md.barrier()  # Rank 0 may not leave the job before.
