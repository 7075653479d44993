"""What the servers do with what workers push. Names of options are as in torch.optim."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

__all__ = ["SGD", "Add", "Assign", "Rule"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The base of all rules. Options are the fields; the servers check their values."""

    @property
    def name(self) -> str:
        """Its name at the servers."""
        return type(self).__name__.lower()

    def options(self) -> list[tuple[str, float]]:
        """All options as the servers take them: numbers, with 1 for True."""
        return [(field.name, float(getattr(self, field.name))) for field in fields(self)]

    def changed(self, **options: float) -> Rule:
        """The same rule with other values. Raises ValueError for an option that it has not."""
        known = [field.name for field in fields(self)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise ValueError(
                f"{type(self).__name__} has no option {unknown[0]!r}, expected "
                f"{', '.join(known) or 'none'}"
            )
        return replace(self, **options)


@dataclass(frozen=True, kw_only=True)
class Add(Rule):
    """w ← w + g: what is pushed is added."""


@dataclass(frozen=True, kw_only=True)
class Assign(Rule):
    """w ← g: what is pushed replaces what there was."""


@dataclass(frozen=True, kw_only=True)
class SGD(Rule):
    """w ← w − lr·g, as torch.optim.SGD."""

    lr: float
