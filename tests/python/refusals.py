"""Tables of calls that are refused: a call, and below it, indented, the error that it raises.

    md.broadcast(T, 2.5)
        TypeError: broadcast: root_rank is 2.5 (float), expected an int

`…` stands for any text, and the error may say more behind the text of the table. A line that
begins with # is a comment.
"""

from __future__ import annotations

import builtins
import re
from typing import Any

import pytest


def refusals(table: str) -> list[tuple[str, str]]:
    """The rows, for parametrize(("call", "error"), …). A call may take several lines."""
    rows: list[tuple[str, str]] = []
    call = ""
    for line in filter(str.strip, table.splitlines()):
        if line.startswith("#"):
            continue
        if line.startswith(" "):
            rows.append((call, line.strip()))
            call = ""
        else:
            call = f"{call} {line}".strip()
    assert not call, f"{call} has no error below it"
    return rows


def expect_refusal(call: str, error: str, names: dict[str, Any]) -> None:
    """Fails unless the call raises the error; `names` are those that it uses."""
    kind, _, text = error.partition(": ")
    pattern = ".*".join(map(re.escape, text.split("…")))
    with pytest.raises(getattr(builtins, kind), match=f"(?s){pattern}"):
        eval(call, dict(names))
