"""The reduce ops by name, as the checks write them."""

from __future__ import annotations

import mydist as md

REDUCE_OPS = {
    "Average": md.Average,
    "Sum": md.Sum,
    "Min": md.Min,
    "Max": md.Max,
    "Product": md.Product,
}
