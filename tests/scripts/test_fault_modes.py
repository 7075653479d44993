"""Each way in which a job fails has tests that are there, and the page tells of it."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from faults.modes_page import BOUNDS, Mode, read_modes, shown_on_page, table

TESTS = Path(__file__).resolve().parents[1]
MODES = read_modes()
MOST_UNTESTED = 6
_GTEST = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
_CASE = re.compile(r"^void (\w+)\(\) \{", re.MULTILINE)


@functools.cache
def names_in(file: str) -> set[str]:
    """The names of the tests that a file has."""
    path = TESTS / file
    if not path.is_file():
        return set()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".cc":
        return {".".join(names) for names in _GTEST.findall(text)} | set(_CASE.findall(text))
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    if file.startswith("multiproc/checks/"):
        return {f.name for f in functions if "check(" in decorators_of(f)}
    return {f.name for f in functions if f.name.startswith("test_")}


def decorators_of(function: ast.FunctionDef) -> str:
    return " ".join(ast.unparse(decorator) for decorator in function.decorator_list)


def why_missing(test: str) -> str:
    """Empty where the test is there."""
    file, _, name = test.partition("::")
    return "" if name in names_in(file) else f"there is no {test}"


def test_there_are_68_modes_in_order() -> None:
    assert [mode.number for mode in MODES] == list(range(1, 69))
    assert {mode.bound for mode in MODES} <= set(BOUNDS)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: f"mode{mode.number}")
def test_its_tests_are_there(mode: Mode) -> None:
    assert mode.tests
    assert not list(filter(None, map(why_missing, mode.tests)))


def test_few_have_none() -> None:
    untested = [mode.number for mode in MODES if mode.untested]
    assert len(untested) <= MOST_UNTESTED, untested


def test_the_page_has_this_table() -> None:
    assert shown_on_page() == table(), "run: python tests/faults/modes_page.py --write"


@pytest.mark.parametrize(
    "test",
    [
        "launcher/test_none.py::test_exit_codes",
        "launcher/test_job.py::test_none",
        "launcher/test_job.py::environments",
        "multiproc/checks/mismatch.py::expect_usable",
        "cpp/job/hello_test.cc::Hello.None",
        "cpp/job/hello_test.cc::EqualOnesPass",
    ],
)
def test_one_that_is_not_there_is_found(test: str) -> None:
    assert why_missing(test) == f"there is no {test}"
