"""md.admm on real ranks: the minimum of the sum, process sets, settings that differ."""

from __future__ import annotations

from typing import Any

import torch

import mydist as md
from multiproc.checks.consistency import expect_mismatch, last, others_text
from multiproc.checks.optimizer_sets import halves
from multiproc.reference import expect_near, raw
from multiproc.registry import check

FLOAT64 = {"dtype": torch.float64}


def problem(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's f is half the sum of curvature (x − centre)²."""
    index = torch.arange(5, **FLOAT64)
    return 1 + (index + rank) % 3, (rank + 1) * torch.cos(index)


def solver(v: torch.Tensor, rho: float) -> torch.Tensor:
    curvature, centre = problem(md.rank())
    return (curvature * centre + rho * v) / (curvature + rho)


def least(ranks: list[int]) -> torch.Tensor:
    """What minimises the sum over these ranks."""
    curvatures, centres = zip(*map(problem, ranks), strict=True)
    return sum(c * z for c, z in zip(curvatures, centres, strict=True)) / sum(curvatures)


def exactly(**options: Any) -> Any:
    start = torch.full((5,), float(md.rank()), **FLOAT64)  # That of the first rank counts.
    return md.admm(solver, start, absolute=1e-9, relative=1e-9, max_rounds=200, **options)


@check()
def admm_finds_the_minimum_of_the_sum_on_all_ranks() -> None:
    before = md.stats()["tensor_bytes"]
    result = exactly()
    sent = md.stats()["tensor_bytes"] - before
    assert result.converged and result.rounds > 1
    expect_near(result.z, least(list(range(md.size()))), 1e-7, "z")
    own = raw(result.z), result.rounds, result.primal, result.dual, result.rho
    assert set(md.allgather_object(own)) == {own}
    rounds = result.rounds * (5 * 8 + 24)
    assert rounds <= sent <= rounds + 1024, "z and 24 bytes a round, after the start"


@check(min_size=2)
def each_set_solves_a_problem_of_its_own() -> None:
    with halves() as own:
        expect_near(exactly(process_set=own).z, least(list(own.ranks)), 1e-7, "z of a set")
        md.barrier()


@check(min_size=2, cases=[("rho",), ("max_rounds",), ("prox",)])
def ranks_with_different_settings_of_admm_are_told_both(setting: str) -> None:
    other = {"rho": 3.0, "max_rounds": 7, "prox": lambda v, weight: v}[setting]
    options = {setting: other} if md.rank() == last() else {}
    said = {"rho": ("rho=1.0", "rho=3.0"), "max_rounds": ("max_rounds=100", "max_rounds=7")}
    usual, different = said.get(setting, ("prox=None", "prox=given"))
    expect_mismatch(
        lambda: md.admm(solver, torch.zeros(5, **FLOAT64), **options),
        f"  {others_text()}: admm(",
        usual,
        f"  rank {last()}: admm(",
        different,
    )
