"""The parameter server: tables that workers push gradients to and pull parameters from.

    table = md.ps.Table("fc", like=model.fc.weight, rule=md.ps.SGD(lr=0.1))
    weight = table.push_pull(gradient)

docs/parameter_server.md says when to use it, and what each consistency means.
"""

from __future__ import annotations

from .consistency import SSP, Async, Consistency, Sync
from .initial_values import Initial, Normal, Uniform, Zeros
from .row_table import RowTable
from .rules import (
    DCASGD,
    FTRL,
    SGD,
    AdaDelay,
    Adagrad,
    Adam,
    AdamW,
    AdaptiveRevision,
    Add,
    Assign,
    Elastic,
    Rule,
)
from .table import Table

__all__ = [
    "DCASGD",
    "FTRL",
    "SGD",
    "SSP",
    "AdaDelay",
    "Adagrad",
    "Adam",
    "AdamW",
    "AdaptiveRevision",
    "Add",
    "Assign",
    "Async",
    "Consistency",
    "Elastic",
    "Initial",
    "Normal",
    "RowTable",
    "Rule",
    "Sync",
    "Table",
    "Uniform",
    "Zeros",
]
