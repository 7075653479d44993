"""Name patterns: which entry of a dict such as `{"emb.*": …, "*": …}` takes which parameter."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def first_match(name: str, patterns: Iterable[str]) -> str | None:
    """The first of the shell patterns that matches the whole name; capital letters count."""
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def by_pattern(owner: str, patterns: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """For each pattern the names that it takes, both in their order; the first match takes a name.

    Raises ValueError for a name that no pattern takes, and a pattern that takes none.
    """
    taken: dict[str, list[str]] = {pattern: [] for pattern in patterns}
    known = list(names)
    for name in known:
        taken[checked_match(owner, name, taken)].append(name)
    for pattern, members in taken.items():
        if not members:
            some = ", ".join(known[:3]) + (", …" if len(known) > 3 else "")
            raise ValueError(
                f"{owner}: the pattern '{pattern}' takes no parameter; correct it, or put it in "
                f"front of the patterns that match the same names. The names are: {some}"
            )
    return taken


def checked_match(owner: str, name: str, patterns: Iterable[str]) -> str:
    """As `first_match`. Raises ValueError where no pattern matches."""
    pattern = first_match(name, patterns)
    if pattern is None:
        raise ValueError(
            f"{owner}: no pattern takes the parameter '{name}'; add an entry for the rest, under "
            "the pattern '*'"
        )
    return pattern
