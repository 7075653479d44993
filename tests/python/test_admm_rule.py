"""admm() against consensus ADMM in numpy, as Boyd et al. write it, on simulated ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from refusals import expect_refusal, refusals

import mydist as md
from mydist.optim.strategies.admm import AdmmResult, Consensus
from mydist.optim.strategies.simulation import SimulatedWorker, Simulation

SHAPE, ELEMENTS, RANKS = (2, 3), 6, 4
_random = np.random.default_rng(7)
# f(x) of a rank: 1/2 (x − a)ᵀ Q (x − a).
_factors = _random.normal(size=(RANKS, ELEMENTS, ELEMENTS))
Q = _factors @ _factors.transpose(0, 2, 1) / ELEMENTS + 0.1 * np.eye(ELEMENTS)
A = _random.normal(size=(RANKS, ELEMENTS))
LASSO = 0.8


def nearest(rank: int, v: Any, rho: float) -> Any:
    return np.linalg.solve(Q[rank] + rho * np.eye(ELEMENTS), Q[rank] @ A[rank] + rho * v)


def shrunk(v: Any, weight: float) -> Any:
    """The z that minimises LASSO · ‖z‖₁ + weight/2 ‖z − v‖²."""
    return np.sign(v) * np.maximum(np.abs(v) - LASSO / weight, 0)


def expected(size: int, rho: float, adaptive: bool, alpha: float, lasso: bool, tol: Any, most: int):
    """z, rounds, the norms and rho: sections 3.3, 3.4.1, 3.4.3 and 7.1 of the paper."""
    z, u = np.ones(ELEMENTS), np.zeros((size, ELEMENTS))
    for done in range(1, most + 1):
        x = np.array([nearest(k, z - u[k], rho) for k in range(size)])
        relaxed, old = alpha * x + (1 - alpha) * z, z
        z = (relaxed + u).mean(axis=0)
        z = shrunk(z, size * rho) if lasso else z
        u = u + relaxed - z
        primal, dual = np.linalg.norm(x - z), rho * np.sqrt(size) * np.linalg.norm(z - old)
        terms = max(np.linalg.norm(x), np.sqrt(size) * np.linalg.norm(z))
        near = np.sqrt(size * ELEMENTS) * tol[0]
        if primal <= near + tol[1] * terms and dual <= near + tol[1] * rho * np.linalg.norm(u):
            return z, done, primal, dual, rho, True
        if adaptive and primal > 10 * dual:
            rho, u = rho * 2, u / 2
        elif adaptive and dual > 10 * primal:
            rho, u = rho / 2, u * 2
    return z, most, primal, dual, rho, False


def solved(size: int, rho: float, adaptive: bool, alpha: float, lasso: bool, tol: Any, most: int):
    def program(worker: SimulatedWorker) -> AdmmResult:
        def solve(v: torch.Tensor, rho: float) -> torch.Tensor:
            return torch.tensor(nearest(worker.rank, v.flatten().numpy(), rho)).view(SHAPE)

        def prox(v: torch.Tensor, weight: float) -> torch.Tensor:
            return torch.tensor(shrunk(v.numpy(), weight))

        def total(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            return [worker.meet("total", t, sum).clone() for t in tensors]

        rule = Consensus(solve, prox if lasso else None, total, size, alpha)
        return rule.solve(torch.ones(SHAPE, dtype=torch.float64), rho, adaptive, tol, most)

    results = Simulation(size).run(program)
    assert all(torch.equal(result.z, results[0].z) for result in results)
    return results[0]


@pytest.mark.parametrize("lasso", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 1.6])
@pytest.mark.parametrize(("rho", "adaptive"), [(1.0, False), (1e-3, True), (1e3, True)])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_rule(size: int, rho: float, adaptive: bool, alpha: float, lasso: bool) -> None:
    for tol, most in (((0.0, 0.0), 12), ((1e-4, 1e-3), 200)):
        result = solved(size, rho, adaptive, alpha, lasso, tol, most)
        z, rounds, primal, dual, last_rho, converged = expected(
            size, rho, adaptive, alpha, lasso, tol, most
        )
        np.testing.assert_allclose(result.z.flatten().numpy(), z, rtol=0, atol=1e-12)
        assert (result.rounds, result.rho, result.converged) == (rounds, last_rho, converged)
        assert (result.primal, result.dual) == pytest.approx((primal, dual), rel=1e-9, abs=1e-12)


def test_it_finds_the_minimum_of_the_sum() -> None:
    result = solved(4, 1.0, True, 1.6, False, (1e-9, 1e-9), 500)
    least = np.linalg.solve(Q.sum(axis=0), np.einsum("kij,kj->i", Q, A))
    np.testing.assert_allclose(result.z.flatten().numpy(), least, atol=1e-6)
    assert result.converged


@pytest.mark.usefixtures("job")
def test_one_rank_solves_its_own_problem() -> None:
    def solve(v: torch.Tensor, rho: float) -> torch.Tensor:
        return torch.tensor(nearest(0, v.numpy(), rho))

    start = torch.zeros(ELEMENTS, dtype=torch.float64)
    result = md.admm(solve, start, absolute=1e-9, relative=1e-9)
    np.testing.assert_allclose(result.z.numpy(), A[0], atol=1e-6)
    assert result.converged and not start.any(), "start is not overwritten"


def keep(v: torch.Tensor, rho: float) -> torch.Tensor:
    return v


START = torch.zeros(3)

WRONG = refusals(
    """
md.admm(keep, START, rho=0)
    ValueError: admm: rho is 0, expected a number above 0
md.admm(keep, START, relaxation=2)
    ValueError: admm: relaxation is 2, expected a number above 0 and below 2
md.admm(keep, START, absolute=-1)
    ValueError: admm: absolute is -1, expected a number of at least 0
md.admm(keep, START, relative='1')
    ValueError: admm: relative is '1', expected a number of at least 0
md.admm(keep, START, max_rounds=0)
    ValueError: admm: max_rounds is 0, expected an int of at least 1
md.admm(keep, torch.zeros(3, dtype=torch.int64))
    TypeError: admm: start is…expected a floating-point tensor
md.admm(lambda v, rho: v[:2], START)
    ValueError: admm: local_solver returned (2,), expected shape (3,)
md.admm(lambda v, rho: None, START)
    ValueError: admm: local_solver returned NoneType, expected shape (3,)
md.admm(keep, START, prox=lambda v, weight: v.sum())
    ValueError: admm: prox returned (), expected shape (3,)
"""
)


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_arguments(call: str, error: str) -> None:
    expect_refusal(call, error, globals())
