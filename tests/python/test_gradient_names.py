"""Names and groups of gradients, without any rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mydist.optim.gradient_names import GradientNames, parameter_groups


def parameters(count: int) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(index + 1)) for index in range(count)]


def names_of(optimizer: torch.optim.Optimizer, named: Any = None) -> list[str]:
    return [name for _, name in GradientNames(optimizer, named).of(optimizer)]


def test_positions_without_names() -> None:
    a, b, c = parameters(3)
    optimizer = torch.optim.SGD([{"params": [a, b]}, {"params": [c]}], lr=1)
    assert names_of(optimizer) == ["param_group.0.0", "param_group.0.1", "param_group.1.0"]


def test_names_the_optimizer_was_made_with() -> None:
    model = torch.nn.Linear(2, 2)
    assert names_of(torch.optim.SGD(model.named_parameters(), lr=1)) == ["weight", "bias"]


def test_given_names_win_and_extra_ones_are_fine() -> None:
    a, b, c = parameters(3)
    optimizer = torch.optim.SGD([a, b], lr=1)
    assert names_of(optimizer, [("c", c), ("b", b), ("a", a)]) == ["a", "b"]


def test_a_tied_parameter_keeps_its_first_name() -> None:
    (a,) = parameters(1)
    optimizer = torch.optim.SGD([a], lr=1)
    assert names_of(optimizer, [("first", a), ("second", a)]) == ["first"]


def test_parameters_added_later_have_names() -> None:
    a, b, c = parameters(3)
    optimizer = torch.optim.SGD([a], lr=1)
    names = GradientNames(optimizer, [("a", a), ("b", b)])
    optimizer.add_param_group({"params": [b, c]})
    assert [name for _, name in names.of(optimizer)] == ["a", "b", "param_group.1.1"]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ([("x", 0), ("x", 1)], "the name 'x' twice"),
        ([("x", 0)], r"does not name 1 of the optimizer's parameters \(group.position: 0.1\)"),
        ([], r"does not name 2 .*0.0, 0.1"),
        (["x"], "contains str, expected pairs"),
        ([("x", None)], "contains tuple, expected pairs"),
        ([(3, 0)], "contains tuple, expected pairs"),
    ],
)
def test_bad_names(named: list[Any], message: str) -> None:
    made = parameters(2)
    entries = [
        (entry[0], made[entry[1]] if isinstance(entry[1], int) else entry[1])
        if isinstance(entry, tuple)
        else entry
        for entry in named
    ]
    with pytest.raises(ValueError, match=message):
        GradientNames(torch.optim.SGD(made, lr=1), entries)


@pytest.mark.parametrize("named", [torch.nn.Linear(2, 2), {"x": torch.ones(1)}, 3])
def test_what_is_no_list_of_names(named: Any) -> None:
    message = f"named_parameters is {type(named).__name__}, expected pairs"
    with pytest.raises(ValueError, match=message):
        GradientNames(torch.optim.SGD(parameters(2), lr=1), named)


@pytest.mark.parametrize(
    ("count", "lengths"), [(1, [5]), (2, [3, 2]), (4, [2, 1, 1, 1]), (9, [1] * 5)]
)
def test_a_number_of_groups_splits_evenly(count: int, lengths: list[int]) -> None:
    made = parameters(5)
    groups = parameter_groups(torch.optim.SGD(made, lr=1), count)
    assert [len(group) for group in groups] == lengths
    assert [p for group in groups for p in group] == made


def test_lists_of_parameters() -> None:
    made = parameters(3)
    optimizer = torch.optim.SGD(made, lr=1)
    assert parameter_groups(optimizer, None) == []
    groups = parameter_groups(optimizer, [(made[2],), [made[0]]])
    assert [[p.numel() for p in group] for group in groups] == [[3], [1]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (0, "groups is 0, expected a number of groups of at least 1"),
        (-3, "groups is -3"),
        (True, "groups is bool"),
        ("all", "groups is str"),
        (1.0, "groups is float"),
        ([3], "groups is list"),
        ([["a"]], "groups is list"),
        ([[torch.ones(4)]], r"groups\[0\] contains a tensor of shape \(4,\)"),
    ],
)
def test_bad_groups(groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parameter_groups(torch.optim.SGD(parameters(2), lr=1), groups)


def test_a_parameter_in_two_groups() -> None:
    made = parameters(2)
    with pytest.raises(ValueError, match=r"groups\[0\] and groups\[2\] both contain"):
        parameter_groups(torch.optim.SGD(made, lr=1), [[made[0]], [made[1]], [made[0]]])
