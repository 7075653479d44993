"""Several strategies in one optimizer, on real ranks; parts of the model are on servers.

Rounds and state of mixtures without servers are in the checks of strategies, under "mixture".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

import mydist as md
from multiproc.checks.checkpoints import folder
from multiproc.checks.consistency import expect_mismatch, last, others_text
from multiproc.checks.models import PassThrough, checked_every, optimizer_classes, raises
from multiproc.checks.optimizer_scaling import scaler_of
from multiproc.checks.strategy_models import Trained, expect_all_near, expect_equal_ranks, real
from multiproc.reference import expect_near, raw
from multiproc.registry import check

RATE, ROWS, STEPS = 0.05, 7, 5
LOCAL = {"0.*": md.LocalSGD(3), "*": md.SynchronousGradients()}


def served(consistency: md.ps.Consistency, pattern: str = "0.*") -> dict[str, md.Strategy]:
    """A part on servers, and averaged gradients for the rest."""
    rule = md.ps.SGD(lr=RATE)
    return {pattern: md.AsynchronousGradients(rule, consistency), "*": md.SynchronousGradients()}


def mixed(communication: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Trained:
    """Without momentum, which servers do not take."""
    inner = options.pop("inner", {})

    def wrap(model: torch.nn.Module, _: torch.optim.Optimizer) -> Any:
        return md.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=RATE, **inner),
            named_parameters=model.named_parameters(),
            named_buffers=model.named_buffers(),
            communication=communication,
            **options,
        )

    return Trained(md.rank(), wrap, dtype)


class Clicks(torch.nn.Module):
    """An embedding, and a dense part behind it; equal on all ranks."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.emb = torch.nn.Embedding(ROWS, 3, sparse=sparse)
            self.fc = torch.nn.Linear(3, 1)

    def loss(self, rank: int, step: int) -> torch.Tensor:
        """Of a rank's batch."""
        rows = torch.tensor([rank % ROWS, (rank + step) % ROWS, 4])
        outputs: torch.Tensor = self.fc(self.emb(rows))
        return (outputs - step - rank).square().mean()


def expected_clicks(passes: int) -> list[torch.Tensor]:
    """After the steps, in float64: each along the mean over the ranks of their gradients' sums."""
    model = Clicks(sparse=False).double()
    parameters = list(model.parameters())
    for step in range(STEPS):
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for rank in range(md.size()):
            for part in range(passes):
                slopes = torch.autograd.grad(model.loss(rank, step + part), parameters)
                total = [t + slope / md.size() for t, slope in zip(total, slopes, strict=True)]
        with torch.no_grad():
            for parameter, slope in zip(parameters, total, strict=True):
                parameter -= RATE * slope
    return [parameter.detach() for parameter in parameters]


# By name: whether the embedding is sparse, options of the optimizer, and passes of a step.
CLICKS: dict[str, tuple[bool, dict[str, Any], int]] = {
    "dense": (False, {}, 1),
    "sparse": (True, {}, 1),
    "sparse as dense": (True, {"sparse_as_dense": True}, 1),
    "closure": (True, {}, 1),
    "no_sync": (True, {}, 2),
    "two passes": (False, {"backward_passes_per_step": 2}, 2),
    "python": (False, {"compression": PassThrough}, 1),
}


@check(cases=[(name,) for name in CLICKS])
def an_embedding_on_servers_and_averaged_gradients_train_as_one(name: str) -> None:
    sparse, options, passes = CLICKS[name]
    model = Clicks(sparse)
    optimizer: Any = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE),
        named_parameters=model.named_parameters(),
        communication=served(md.ps.Sync(), "emb.*"),
        **options,
    )

    def backward(step: int) -> torch.Tensor:
        optimizer.zero_grad()
        for part in range(passes - 1):
            with optimizer.no_sync():
                model.loss(md.rank(), step + part).backward()  # type: ignore[no-untyped-call]
        loss = model.loss(md.rank(), step + passes - 1)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for step in range(STEPS):
        if name == "closure":
            loss = optimizer.step(lambda step=step: backward(step))
            assert loss.item() > 0
        else:
            backward(step)
            optimizer.step()
        assert model.emb.weight.grad.is_sparse == (sparse and not options)
        assert len(set(md.allgather_object([raw(p) for p in model.parameters()][0]))) == 1
    expect_all_near(list(model.parameters()), expected_clicks(passes), 1e-5, name)
    optimizer.finish()


@dataclass(eq=False)
class Untouched(md.Strategy):
    """Takes no steps."""

    takes_inner_steps: ClassVar[bool] = False

    def after_step(self, step: int) -> None:
        """Does nothing."""


@check()
def no_optimizer_of_torch_changes_a_share_that_takes_no_steps() -> None:
    for name in optimizer_classes():
        start = torch.ones(2, 2)
        left, rest = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
        inner = getattr(torch.optim, name)([("left", left), (f"{name}.rest", rest)], lr=0.1)
        optimizer: Any = md.DistributedOptimizer(
            inner, communication={"left": Untouched(), "*": md.SynchronousGradients()}
        )
        for _ in range(2):
            left.grad = torch.ones(2, 2)
            rest.grad = left.grad.to_sparse() if name == "SparseAdam" else left.grad.clone()
            optimizer.step()
        assert torch.equal(left, start), name
        assert not torch.equal(rest, start) and left.grad is not None, name


@check()
def each_share_is_a_row_of_what_is_chosen() -> None:
    trained = mixed(served(md.ps.SSP(3)))
    trained.step(2)
    rows = [line for line in str(md.explain()).splitlines() if line.startswith("communication")]
    assert any("'0.*': AsynchronousGradients(rule=SGD(lr=0.05" in row for row in rows), rows
    wanted = "'*': SynchronousGradients() (gradients are reduced; 2 steps so far)"
    assert any(wanted in row for row in rows), rows
    trained.optimizer.finish()


@check(min_size=2)
def a_share_that_one_rank_refuses_is_a_step_of_no_rank() -> None:
    trained, plain = mixed(served(md.ps.Sync())), mixed(None)
    for refuses in (True, False, True, False):  # Also before there is a table.
        before = [raw(p) for p in trained.model.parameters()]
        if not refuses:
            trained.step()
            plain.step()
            continue
        trained.optimizer.zero_grad()
        trained.backward()
        trained.taken -= 1
        if md.rank() == last():
            trained.model[0].weight.grad[1, 2] = float("nan")
        raises(trained.optimizer.step, f"step() on rank {last()}: ")
        assert before == [raw(p) for p in trained.model.parameters()]
    expect_all_near(
        list(trained.model.parameters()), list(plain.model.parameters()), 1e-5, "parameters"
    )
    trained.optimizer.finish()
    expect_equal_ranks(trained)


@check(min_size=2)
def gradients_of_reduced_shares_are_all_that_ranks_send() -> None:
    """Unless a scaler looks for overflow, which ranks then tell each other."""
    trained, scaler = (
        mixed({"0.*": md.LocalSGD(None), "*": md.SynchronousGradients()}),
        scaler_of(1),
    )
    trained.step(2)
    gradients = 4 * sum(p.numel() for n, p in trained.model.named_parameters() if n[0] != "0")
    for is_scaled in (False, True):
        before = md.stats()["tensor_bytes"]
        trained.optimizer.zero_grad()
        trained.backward()
        pending = trained.optimizer._distribution.pending()
        assert pending and all(name[0] != "0" for name in pending), "backward reduces the rest"
        if is_scaled:
            scaler.scale(torch.ones(()))
            scaler.step(trained.optimizer)
        else:
            trained.optimizer.step()
        sent = md.stats()["tensor_bytes"] - before
        assert sent == gradients + 8 * is_scaled, (sent, gradients)
    trained.optimizer.finish()


UNEVEN: dict[str, Callable[[], dict[str, md.Strategy]]] = {
    "served": lambda: served(md.ps.SSP(3)),
    "served sync": lambda: served(md.ps.Sync()),
    "served and local": lambda: {**served(md.ps.Async()), "*": md.LocalSGD(3)},
    "warm start": lambda: {
        "0.*": md.Downpour(2, 2, warm_start_steps=3, rule=md.ps.SGD(lr=RATE)),
        "*": md.SynchronousGradients(),
    },
}


@check(min_size=2, cases=[(name,) for name in UNEVEN])
def ranks_may_make_any_numbers_of_steps_and_join(name: str) -> None:
    trained = mixed(UNEVEN[name]())
    for _ in range(2):
        trained.step(4 + 4 * md.rank())  # All have begun before one joins.
        md.join()
        trained.optimizer.finish()
        expect_equal_ranks(trained, name)
    assert len(set(md.allgather_object(trained.optimizer._distribution.runs[1].steps))) == 1


@check(min_size=2)
def finish_after_join_copies_the_momenta_of_reduced_shares_alone() -> None:
    trained = real(LOCAL)
    trained.step(4 + md.rank())
    md.join()
    (local, *_), before = trained.momenta(), raw(trained.momenta()[0])
    trained.optimizer.finish()
    assert raw(local) == before == raw(trained.momenta()[0])
    assert len(set(md.allgather_object(before))) == md.size()
    assert len(set(md.allgather_object(raw(trained.momenta()[-1])))) == 1


@check(cases=[(name,) for name in UNEVEN])
def training_goes_on_from_a_checkpoint(name: str) -> None:
    with folder() as path:
        saving = mixed(UNEVEN[name]())
        saving.step(6)
        saving.optimizer.finish()
        with md.Checkpoint(path, model=saving.model, optimizer=saving.optimizer) as saver:
            saver.save(6)
        resumed = mixed(UNEVEN[name]())
        with md.Checkpoint(path, model=resumed.model, optimizer=resumed.optimizer) as loader:
            assert loader.step == 6
        assert [raw(t) for t in resumed.tensors()] == [raw(t) for t in saving.tensors()]
    resumed.step(3)
    resumed.optimizer.finish()
    expect_equal_ranks(resumed, name)


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "setting": (LOCAL, {**LOCAL, "0.*": md.LocalSGD(4)}),
    "pattern": (LOCAL, {"0.w*": md.LocalSGD(3), "*": md.SynchronousGradients()}),
    "one": (LOCAL, md.LocalSGD(3)),
    "none": (LOCAL, None),
}


@check(min_size=2, cases=[(kind,) for kind in DIFFERENT])
def ranks_with_different_mixtures_are_told_both(kind: str) -> None:
    usual, other = DIFFERENT[kind]
    trained = mixed(other if md.rank() == last() else usual)
    text = (
        "{'0.*': LocalSGD(every=3, momentum='keep', weighted=False), '*': SynchronousGradients()}"
    )
    expect_mismatch(
        trained.optimizer.step,
        "check before step 1 of the optimizer: communication differs between ranks:",
        f"  {others_text()}: {text}\n",
        f"  rank {last()}: ",
    )


@check(min_size=2)
def ranks_are_compared_by_what_must_be_equal() -> None:
    with checked_every(1):
        trained = mixed({"1.*": md.ElasticAveraging(2), **LOCAL})
    trained.step(4)
    weights = md.allgather_object(raw(trained.model[0].weight))
    assert len(set(weights)) == md.size(), "which is between rounds"
    with torch.no_grad():
        trained.model[3].bias[1] += md.rank() == last()
    expect_mismatch(trained.step, "check before step 5 of the optimizer", "parameter '3.bias' diff")


@check(min_size=2, cases=[(unscales,) for unscales in (False, True)])
def each_share_is_clipped_by_its_own_norm(unscales: bool) -> None:
    trained, scaler = mixed(LOCAL, torch.float64), scaler_of(2.0)
    trained.optimizer.zero_grad()
    trained.backward(float(scaler.scale(torch.ones(()))))
    if unscales:
        scaler.unscale_(trained.optimizer)
    trained.optimizer.synchronize() if not unscales else None
    local, reduced = ([p.grad for p in part.parameters()] for part in shares_of(trained))
    norms = [torch.cat([g.flatten() for g in part]).norm() for part in (local, reduced)]
    most = 0.5 * norms[1].item()
    scales = [min(1.0, most / (norm.item() + 1e-6)) for norm in norms]
    wanted = [g * scales[0] for g in local] + [g * scales[1] for g in reduced]
    total = trained.optimizer.clip_grad_norm_(most)
    expect_near(total, torch.stack(norms).norm(), 1e-12, "the norm of all")
    expect_all_near([*local, *reduced], wanted, 1e-12, "gradients")
    with trained.optimizer.skip_synchronize():
        scaler.step(trained.optimizer)
    assert len(set(md.allgather_object(raw(trained.model[3].weight)))) == 1


def shares_of(trained: Trained) -> tuple[torch.nn.Module, torch.nn.Module]:
    """What LOCAL leaves local, and what it reduces."""
    return trained.model[0], torch.nn.ModuleList([trained.model[1], trained.model[3]])


INNER: dict[str, tuple[Any, dict[str, Any]]] = {
    "local": (LOCAL, {}),
    "local, fused": (LOCAL, {"fused": True, "momentum": 0.9}),
    "served": (served(md.ps.Sync()), {}),
    "served, fused": (served(md.ps.Sync()), {"fused": True}),
}


@check(min_size=2, cases=[(kind, unscales) for kind in INNER for unscales in (False, True)])
def ranks_skip_a_step_together_after_an_overflow_of_one(kind: str, unscales: bool) -> None:
    communication, inner = INNER[kind]
    trained, scaler = mixed(communication, inner=inner), scaler_of(256.0)
    plain = mixed(None, inner=inner)

    def scaled_step(overflows: bool) -> None:
        trained.optimizer.zero_grad()
        trained.backward(float(scaler.scale(torch.ones(()))))
        if overflows:
            trained.model[0].weight.grad[1, 2] = float("inf")
        if unscales:
            scaler.unscale_(trained.optimizer)
        scaler.step(trained.optimizer)
        scaler.update()

    for culprit in (None, 0, None, md.size() - 1, None):
        before = [raw(p) for p in trained.model.parameters()]
        scaled_step(overflows=md.rank() == culprit)
        if culprit is not None:
            assert before == [raw(p) for p in trained.model.parameters()], "a rank took a step"
            plain.taken += 1
        elif kind.startswith("served"):
            plain.step()
            expect_all_near(
                list(trained.model.parameters()), list(plain.model.parameters()), 1e-5, kind
            )
        counted = {run.steps for run in trained.optimizer._distribution.runs}
        row = (scaler.get_scale(), counted, raw(trained.model[3].weight))
        assert all(other == row for other in md.allgather_object(row)), "ranks differ"
    assert scaler.get_scale() == 64.0 and counted == {3}
    trained.optimizer.finish()
    expect_equal_ranks(trained)
