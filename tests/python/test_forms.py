"""The forms of a collective take the same arguments, which users and editors see."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

import mydist as md
from mydist.collectives.call import COLLECTIVES

STEMS = [
    stem
    for collective in COLLECTIVES
    for stem in (collective.name, f"grouped_{collective.name}")
    if stem in md.__all__
]
FORMS = [
    (stem, form)
    for stem in STEMS
    for suffix in ("_", "_async", "_async_")
    if (form := f"{stem}{suffix}") in md.__all__
]


def parameters(function: str) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(md, function)).parameters.values())


@pytest.mark.parametrize(("stem", "form"), FORMS)
def test_a_form_has_the_parameters_of_the_synchronous_one(stem: str, form: str) -> None:
    assert parameters(form) == parameters(stem)


@pytest.mark.parametrize("stem", [stem for stem in STEMS if stem.startswith("grouped_")])
def test_a_group_differs_in_its_first_parameter_only(stem: str) -> None:
    first, *others = parameters(stem)
    assert first.name == "tensors"
    assert others == parameters(stem.removeprefix("grouped_"))[1:]


@pytest.mark.parametrize("form", [form for _, form in FORMS if "_async" in form])
def test_an_asynchronous_form_returns_a_handle(form: str) -> None:
    assert get_type_hints(getattr(md, form))["return"] is int
