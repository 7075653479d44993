"""Gradients through collectives, equal to those of one process that has all ranks' inputs.

The loss of a case is the sum over ranks of randomly weighted squares of the outputs; first and
second derivatives are compared in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import mydist as md
from multiproc.checks.ops import REDUCE_OPS
from multiproc.checks.process_sets import added
from multiproc.reference import expect_near, make
from multiproc.registry import check

Tensors = list[torch.Tensor]
Shape = tuple[int, ...]

PRECISION = 1e-10


@dataclass(frozen=True)
class Case:
    """A collective and the same in one process; ranks are counted within the process set.

    shapes: rank and size → shapes of its inputs.
    call: this rank's inputs, a name and the set → this rank's outputs.
    reference: all ranks' inputs → all ranks' outputs.
    """

    shapes: Callable[[int, int], list[Shape]]
    call: Callable[[Tensors, str, md.ProcessSet], Tensors]
    reference: Callable[[list[Tensors]], list[Tensors]]


def reduced(terms: Tensors, op: str, prescale: float = 1.0, postscale: float = 1.0) -> torch.Tensor:
    stack = torch.stack(terms) * prescale
    result = {
        "Sum": lambda: stack.sum(0),
        "Average": lambda: stack.mean(0),
        "Min": lambda: stack.amin(0),
        "Max": lambda: stack.amax(0),
        "Product": lambda: stack.prod(0),
    }[op]()
    return result * postscale


def rows_of(tensor: torch.Tensor, size: int) -> Tensors:
    """As reducescatter deals them out: the first ranks get one more."""
    return list(tensor.tensor_split(size))


def everywhere(outputs: Callable[[list[Tensors]], Tensors]) -> Callable[..., list[Tensors]]:
    """A reference whose outputs are the same on all ranks."""
    return lambda inputs: [outputs(inputs)] * len(inputs)


def allreduce_case(op: str, pre: float = 1.0, post: float = 1.0) -> Case:
    return Case(
        lambda rank, size: [(3, 4)],
        lambda xs, name, ps: [
            md.allreduce(
                xs[0],
                op=REDUCE_OPS[op],
                name=name,
                prescale_factor=pre,
                postscale_factor=post,
                process_set=ps,
            )
        ],
        everywhere(lambda inputs: [reduced([xs[0] for xs in inputs], op, pre, post)]),
    )


def grouped_allreduce_case(op: str) -> Case:
    return Case(
        lambda rank, size: [(5,), (), (2, 3)],
        lambda xs, name, ps: md.grouped_allreduce(xs, op=REDUCE_OPS[op], name=name, process_set=ps),
        everywhere(
            lambda inputs: [reduced([xs[i] for xs in inputs], op) for i in range(len(inputs[0]))]
        ),
    )


def reducescatter_case(op: str, pre: float = 1.0, post: float = 1.0) -> Case:
    return Case(
        lambda rank, size: [(5, 2)],  # uneven at 2, 3 and 4 ranks
        lambda xs, name, ps: [
            md.reducescatter(
                xs[0],
                op=REDUCE_OPS[op],
                name=name,
                prescale_factor=pre,
                postscale_factor=post,
                process_set=ps,
            )
        ],
        lambda inputs: [
            [rows]
            for rows in rows_of(reduced([xs[0] for xs in inputs], op, pre, post), len(inputs))
        ],
    )


def grouped_reducescatter_case(op: str) -> Case:
    def reference(inputs: list[Tensors]) -> list[Tensors]:
        dealt = [
            rows_of(reduced([xs[i] for xs in inputs], op), len(inputs))
            for i in range(len(inputs[0]))
        ]
        return [list(outputs) for outputs in zip(*dealt, strict=True)]

    return Case(
        lambda rank, size: [(5, 2), (1,)],  # of the second, most ranks get nothing
        lambda xs, name, ps: md.grouped_reducescatter(
            xs, op=REDUCE_OPS[op], name=name, process_set=ps
        ),
        reference,
    )


def joined(inputs: list[Tensors], i: int) -> torch.Tensor:
    return torch.cat([xs[i].reshape(-1) if xs[i].dim() == 0 else xs[i] for xs in inputs])


def rows_sent(sender: int, receiver: int) -> int:
    return (sender + 2 * receiver) % 3


def alltoall_with_splits() -> Case:
    def splits(sender: int, size: int) -> list[int]:
        return [rows_sent(sender, receiver) for receiver in range(size)]

    def reference(inputs: list[Tensors]) -> list[Tensors]:
        n = len(inputs)
        pieces = [inputs[s][0].split(splits(s, n)) for s in range(n)]
        return [[torch.cat([pieces[s][r] for s in range(n)])] for r in range(n)]

    return Case(
        lambda rank, size: [(sum(splits(rank, size)), 2)],
        lambda xs, name, ps: [
            md.alltoall(xs[0], splits(ps.rank(), ps.size()), name=name, process_set=ps)[0]
        ],
        reference,
    )


def alltoall_even() -> Case:
    return Case(
        lambda rank, size: [(2 * size, 2)],
        lambda xs, name, ps: [torch.as_tensor(md.alltoall(xs[0], name=name, process_set=ps))],
        lambda inputs: [
            [torch.cat([xs[0].chunk(len(inputs))[r] for xs in inputs])] for r in range(len(inputs))
        ],
    )


CASES: dict[str, Case] = {
    **{f"allreduce {op}": allreduce_case(op) for op in REDUCE_OPS},
    **{
        f"allreduce {op} scaled {pre}": allreduce_case(op, pre, 0.75)
        for op, pre in (("Average", 3.0), ("Max", 0.5), ("Max", -2.0), ("Product", -1.5))
    },
    **{f"grouped allreduce {op}": grouped_allreduce_case(op) for op in ("Sum", "Min", "Product")},
    **{f"reducescatter {op}": reducescatter_case(op) for op in REDUCE_OPS},
    **{
        f"reducescatter {op} scaled": reducescatter_case(op, -2.0, 0.5)
        for op in ("Average", "Min", "Product")
    },
    **{f"grouped reducescatter {op}": grouped_reducescatter_case(op) for op in ("Average", "Max")},
    "allgather uneven": Case(
        lambda rank, size: [(rank % 3, 2)],
        lambda xs, name, ps: [md.allgather(xs[0], name=name, process_set=ps)],
        everywhere(lambda inputs: [joined(inputs, 0)]),
    ),
    "allgather scalar": Case(
        lambda rank, size: [()],
        lambda xs, name, ps: [md.allgather(xs[0], name=name, process_set=ps)],
        everywhere(lambda inputs: [joined(inputs, 0)]),
    ),
    "grouped allgather": Case(
        lambda rank, size: [(rank + 1, 2), (3 - rank % 3,)],
        lambda xs, name, ps: md.grouped_allgather(xs, name=name, process_set=ps),
        everywhere(lambda inputs: [joined(inputs, i) for i in range(2)]),
    ),
    "broadcast from first": Case(
        lambda rank, size: [(2, 3)],
        lambda xs, name, ps: [md.broadcast(xs[0], ps.ranks[0], name=name, process_set=ps)],
        everywhere(lambda inputs: [inputs[0][0] * 1]),
    ),
    "broadcast from last": Case(
        lambda rank, size: [()],
        lambda xs, name, ps: [md.broadcast(xs[0], ps.ranks[-1], name=name, process_set=ps)],
        everywhere(lambda inputs: [inputs[-1][0] * 1]),
    ),
    "scatter": Case(
        lambda rank, size: [(2 * size + 1, 2) if rank == size - 1 else (rank, 2)],
        lambda xs, name, ps: [md.scatter(xs[0], root_rank=ps.ranks[-1], name=name, process_set=ps)],
        lambda inputs: [[rows] for rows in rows_of(inputs[-1][0], len(inputs))],
    ),
    "scatter with splits": Case(
        lambda rank, size: [(size * (size - 1) // 2, 2)],
        lambda xs, name, ps: [
            md.scatter(xs[0], list(range(ps.size())), ps.ranks[0], name=name, process_set=ps)
        ],
        lambda inputs: [[rows] for rows in inputs[0][0].split(list(range(len(inputs))))],
    ),
    "alltoall with splits": alltoall_with_splits(),
    "alltoall even": alltoall_even(),
}


def leaves(rank: int, shapes: list[Shape], seed: int) -> Tensors:
    """Inputs or weights of one rank; every rank can make those of all."""
    return [make(rank, torch.float64, shape, seed + i) for i, shape in enumerate(shapes)]


def loss_of(outputs: Tensors, rank: int) -> torch.Tensor:
    """A rank's loss: not linear, so that second derivatives are not zero."""
    weights = leaves(rank, [tuple(output.shape) for output in outputs], 50)
    terms = [(w * y.square()).sum() for w, y in zip(weights, outputs, strict=True)]
    return torch.stack(terms).sum()


def slope_of(gradients: tuple[torch.Tensor, ...], rank: int) -> torch.Tensor:
    """A rank's share of a directional derivative of the total loss."""
    directions = leaves(rank, [tuple(gradient.shape) for gradient in gradients], 70)
    terms = [(v * g).sum() for v, g in zip(directions, gradients, strict=True)]
    return torch.stack(terms).sum()


def expected_gradients(case: Case, inputs: list[Tensors]) -> tuple[list[Tensors], list[Tensors]]:
    """First derivatives, and those of their directional derivative, of every rank's inputs."""
    n = len(inputs)
    outputs = case.reference(inputs)
    total = torch.stack([loss_of(outputs[rank], rank) for rank in range(n)]).sum()
    flat = [x for xs in inputs for x in xs]
    options = {"materialize_grads": True, "allow_unused": True}
    first = torch.autograd.grad(total, flat, create_graph=True, **options)
    width = len(inputs[0])
    by_rank = [first[width * rank : width * (rank + 1)] for rank in range(n)]
    slopes = [slope_of(by_rank[rank], rank) for rank in range(n)]
    second = torch.autograd.grad(torch.stack(slopes).sum(), flat, **options)
    return (
        [list(gradients) for gradients in by_rank],
        [list(second[width * rank : width * (rank + 1)]) for rank in range(n)],
    )


def compare(
    case: Case,
    name: str,
    inputs: list[Tensors],
    *,
    process_set: md.ProcessSet = md.global_process_set,
    second_order: bool = True,
) -> None:
    """The gradients that this rank gets are its part of those of one process."""
    me = process_set.rank()
    wanted_first, wanted_second = expected_gradients(case, inputs)
    outputs = case.call(inputs[me], name, process_set)
    for got, wanted in zip(outputs, case.reference(inputs)[me], strict=True):
        expect_near(got, wanted, PRECISION, "output")
    first = torch.autograd.grad(loss_of(outputs, me), inputs[me], create_graph=True)
    for i, (got, wanted) in enumerate(zip(first, wanted_first[me], strict=True)):
        expect_near(got, wanted, PRECISION, f"first derivative {i}")
    if not second_order:
        return
    second = torch.autograd.grad(slope_of(first, me), inputs[me], materialize_grads=True)
    for i, (got, wanted) in enumerate(zip(second, wanted_second[me], strict=True)):
        expect_near(got, wanted, PRECISION, f"second derivative {i}")


def inputs_of(case: Case, size: int) -> list[Tensors]:
    inputs = [leaves(rank, case.shapes(rank, size), 30) for rank in range(size)]
    return [[x.requires_grad_() for x in xs] for xs in inputs]


@check(cases=[(name,) for name in CASES])
def gradient_of(name: str) -> None:
    compare(CASES[name], name, inputs_of(CASES[name], md.size()))


@check(min_size=2)
def gradients_in_process_sets() -> None:
    # First and last rank, and the ranks between them (the last alone when there are two).
    lists = [[0, md.size() - 1], [*range(1, md.size() - 1)]] if md.size() > 2 else [[0], [1]]
    with added(*lists) as sets:
        mine = next(process_set for process_set in sets if process_set.included())
        for name, case in CASES.items():
            compare(case, name, inputs_of(case, mine.size()), process_set=mine)


def small_integers(rank: int, shape: Shape) -> torch.Tensor:
    """Values -1, 0 and 1: many ties and many zeros."""
    generator = torch.Generator().manual_seed(400 + rank)
    return torch.randint(-1, 2, shape, generator=generator).double().requires_grad_()


def small_integers_of(case: Case, size: int) -> list[Tensors]:
    return [
        [small_integers(rank, shape) for shape in case.shapes(rank, size)] for rank in range(size)
    ]


@check(cases=[(name,) for name in CASES if "Min" in name or "Max" in name])
def gradient_is_shared_by_ties(name: str) -> None:
    case = CASES[name]
    compare(case, f"ties {name}", small_integers_of(case, md.size()), second_order=False)


@check(cases=[(name,) for name in CASES if "Product" in name])
def gradient_of_a_product_with_zeros(name: str) -> None:
    compare(CASES[name], f"zeros {name}", small_integers_of(CASES[name], md.size()))


@check(cases=[(dtype, op) for dtype in (torch.float16, torch.bfloat16) for op in REDUCE_OPS])
def gradient_in_half_precision(dtype: torch.dtype, op: str) -> None:
    n, me = md.size(), md.rank()
    inputs = [make(rank, dtype, (4, 3), seed=90) for rank in range(n)]
    weights = [make(rank, dtype, (4, 3), seed=91) for rank in range(n)]
    wide = [x.double().requires_grad_() for x in inputs]
    result = reduced(wide, op)
    torch.stack([(w.double() * result).sum() for w in weights]).sum().backward()
    x = inputs[me].requires_grad_()
    y = md.allreduce(x, op=REDUCE_OPS[op], name=f"half {op} {dtype}")
    (y * weights[me]).sum().backward()
    assert x.grad is not None and x.grad.dtype == dtype
    wanted = wide[me].grad
    assert wanted is not None
    bound = 4 * n * torch.finfo(dtype).eps
    expect_near(x.grad, wanted, bound, "gradient")


@check(cases=[("Sum",), ("Average",), ("Product",)])
def gradient_of_complex_numbers(op: str) -> None:
    inputs = [make(rank, torch.complex128, (4,), seed=95) for rank in range(md.size())]
    alone = [x.clone().requires_grad_() for x in inputs]
    (reduced(alone, op).abs().square().sum() * md.size()).backward()
    x = inputs[md.rank()].requires_grad_()
    md.allreduce(x, op=REDUCE_OPS[op], name=f"complex {op}").abs().square().sum().backward()
    wanted = alone[md.rank()].grad
    assert x.grad is not None and wanted is not None
    expect_near(x.grad, wanted, PRECISION, "gradient")


@check(cases=[("fp16",), ("bf16",)])
def gradient_through_compression(kind: str) -> None:
    n, me = md.size(), md.rank()
    compression = getattr(md.Compression, kind)
    weights = [make(rank, torch.float32, (6,), seed=93).round(decimals=0) for rank in range(n)]
    x = torch.ones(6, requires_grad=True)
    y = md.allreduce(x, op=md.Sum, compression=compression, name=f"compressed {kind}")
    assert y.dtype == torch.float32
    (y * weights[me]).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.stack(weights).sum(0))


@check()
def a_group_of_which_some_members_have_no_gradient() -> None:
    n = md.size()
    x = torch.ones(3, requires_grad=True)
    constant, counts = torch.ones(2), torch.ones(2, dtype=torch.int64)
    results = md.grouped_allreduce([x, constant, counts], op=md.Sum, name="partly recorded")
    assert [r.requires_grad for r in results] == [True, True, False]
    results[0].sum().backward()
    assert x.grad is not None and x.grad.tolist() == [float(n)] * 3
    assert constant.grad is None and results[2].tolist() == [n, n]


@check(min_size=2)
def a_rank_whose_input_is_constant_takes_part_with_a_detached_leaf() -> None:
    # Only the root's values matter, but all ranks are needed in backward.
    is_root = md.rank() == 0
    x = torch.full((3,), 2.0, requires_grad=True) if is_root else torch.empty(3).requires_grad_()
    y = md.broadcast(x, 0, name="constant elsewhere")
    (y * float(md.rank() + 1)).sum().backward()
    total = sum(rank + 1 for rank in range(md.size()))
    assert x.grad is not None and x.grad.tolist() == [total if is_root else 0] * 3


@check(min_size=2)
def a_rank_that_does_not_use_the_output_adds_zero_times_it() -> None:
    x = torch.ones(3, requires_grad=True)
    y = md.allreduce(x, op=md.Sum, name="unused on the last rank")
    used = md.rank() != md.size() - 1
    (y.sum() if used else 0 * y.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [md.size() - 1] * 3


@check(min_size=2)
def a_set_that_is_gone_before_backward_is_named() -> None:
    x = torch.ones(3, requires_grad=True)
    with added([0]) as (alone,):
        y = md.allreduce(x, process_set=alone, name="set is gone") if alone.included() else None
    if y is None:
        return
    try:
        y.sum().backward()
    except ValueError as error:
        assert "ProcessSet([0]) is not part of the job; add it first" in str(error), str(error)
    else:
        raise AssertionError("backward used a set that had been removed")


@check(min_size=2)
def a_mismatch_in_backward_is_an_error_on_all_ranks() -> None:
    # Same shape in forward; in backward the last rank hands another dtype to the same name.
    is_odd = md.rank() == md.size() - 1
    x = torch.ones(3, requires_grad=True)
    y = md.allreduce(x, op=md.Sum, name="agrees in forward")
    try:
        if is_odd:
            name = "agrees in forward.gradient"
            md.allreduce(torch.ones(3, dtype=torch.float64), op=md.Sum, name=name)
        else:
            y.sum().backward()
    except md.MismatchError as error:
        text = str(error)
        assert "agrees in forward.gradient" in text and "float64" in text, text
    else:
        raise AssertionError("no error from a backward whose ranks disagree")
