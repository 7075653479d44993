"""The update rules in Python are those of the servers, option by option."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pytest
from refusals import expect_refusal, refusals

import mydist as md
from mydist.ps.binding import load

KINDS: list[Any] = [getattr(md.ps, name) for name in md.ps.__all__]
RULES: dict[str, type[md.ps.Rule]] = {
    kind.name: kind for kind in KINDS if issubclass(kind, md.ps.Rule) and kind is not md.ps.Rule
}


def required(kind: type[md.ps.Rule]) -> list[str]:
    return [field.name for field in fields(kind) if field.default is MISSING]


def test_python_and_the_servers_have_the_same_rules() -> None:
    assert sorted([*RULES, "none"]) == sorted(load().rules())


@pytest.mark.parametrize("name", RULES)
def test_options_and_their_defaults_are_those_of_the_servers(name: str) -> None:
    needed = required(RULES[name])
    given: dict[str, Any] = dict.fromkeys(needed, 0.5)
    mine = dict(RULES[name](**given).options())
    theirs = load().rules()[name]
    assert mine.keys() == {option for option, _, _ in theirs}
    for option, default, is_required in theirs:
        assert is_required == (option in needed)
        assert is_required or mine[option] == default


def test_options_that_change_keep_the_others() -> None:
    rule = md.ps.AdamW(lr=0.5, betas=(0.8, 0.9)).changed(betas=(0.7, 0.9))
    assert rule == md.ps.AdamW(lr=0.5, betas=(0.7, 0.9))
    assert dict(rule.options())["beta1"] == 0.7


WRONG = refusals(
    """
md.ps.SGD(lr='0.1')
    TypeError: SGD: lr is '0.1' (str), expected a number
md.ps.Adam(betas=0.9)
    TypeError: Adam: betas is 0.9 (float), expected two numbers, such as (0.9, 0.999)
md.ps.AdamW(betas=(0.9, None))
    TypeError: AdamW: beta2 is None (NoneType), expected a number
md.ps.Elastic(alpha=0.5).changed(beta=1)
    ValueError: Elastic has no option 'beta', expected alpha
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_options(call: str, error: str) -> None:
    expect_refusal(call, error, globals())
