"""Which pattern takes which parameter name."""

from __future__ import annotations

import pytest
from refusals import expect_refusal, refusals

from mydist.optim.name_patterns import by_pattern, first_match

NAMES = ["emb.user", "emb.item", "fc.0.weight", "fc.0.bias", "Norm"]


def test_the_first_pattern_that_matches_takes_a_name_and_all_keep_their_order() -> None:
    patterns = ["*.bias", "emb.*", "[A-Z]*", "fc.?.*", "emb.*x"]
    assert first_match("emb.bias", patterns) == "*.bias"
    assert first_match("norm", patterns) is None, "capital letters count"
    assert by_pattern("x", patterns[:-1], NAMES) == {
        "*.bias": ["fc.0.bias"],
        "emb.*": ["emb.user", "emb.item"],
        "[A-Z]*": ["Norm"],
        "fc.?.*": ["fc.0.weight"],
    }
    assert by_pattern("x", ["*"], NAMES) == {"*": NAMES}


WRONG = refusals(
    """
by_pattern('f: communication', ['emb.*', 'fc'], NAMES)
    ValueError: f: communication: no pattern takes the parameter 'fc.0.weight'; add an entry for
by_pattern('f', ['*', 'emb.*'], NAMES)
    ValueError: the pattern 'emb.*' takes no parameter; correct it, or put it in front of the
by_pattern('f', ['embed.*', '*'], NAMES)
    ValueError: f: the pattern 'embed.*' …The names are: emb.user, emb.item, fc.0.weight, …
by_pattern('f', ['*'], [])
    ValueError: f: the pattern '*' takes no parameter
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_what_does_not_fit(call: str, error: str) -> None:
    expect_refusal(call, error, globals())
