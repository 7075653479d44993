"""How values of several ranks become one."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"]


class ReduceOp(IntEnum):
    """The operation of a reduction; the numbers are those of the C++ core.

    For bool, Sum and Max are a logical or, Min and Product a logical and, and Average has no
    meaning. For complex numbers Min and Max have none. Averages of integers are summed in wider
    numbers, so they do not wrap, and truncated toward zero: -3 / 2 is -1. Sum and Product of
    integers wrap as torch's do.

    Adasum adds what is orthogonal in the ranks' tensors and averages what is parallel, so that the
    learning rate need not grow with the number of ranks; floating point, allreduce only. Source:
    Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv:2006.02924.
    """

    AVERAGE = 0
    SUM = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    ADASUM = 5

    def __str__(self) -> str:
        return self.name.capitalize()


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM
