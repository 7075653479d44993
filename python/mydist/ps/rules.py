"""What the servers do with what workers push. Names of options are as in torch.optim.

In the docstrings w are the parameters on the server, g is what is pushed, and t counts pushes to
the table from 1. Of a RowTable only the rows that are pushed change, and their state; t counts all
pushes to the table, as the step of torch.optim.SparseAdam does. Unless a docstring says otherwise,
operations go element by element. Servers compute in float32. With Sync a rule is applied to the
mean over the workers, which has no delay.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from ..job.error_text import wrong_type

__all__ = [
    "DCASGD",
    "FTRL",
    "SGD",
    "AdaDelay",
    "Adagrad",
    "Adam",
    "AdamW",
    "AdaptiveRevision",
    "Add",
    "Assign",
    "Elastic",
    "Rule",
]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The base of all rules. Options are the fields; the servers check their values.

    Attributes:
        name: of the rule at the servers.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Raises TypeError for an option that is no number."""
        for option, value in self._numbers():
            if not isinstance(value, (int, float)):
                raise wrong_type(f"{type(self).__name__}: {option}", value, "a number")

    def options(self) -> list[tuple[str, float]]:
        """All options as the servers take them: numbers, with 1 for True."""
        return [(option, float(value)) for option, value in self._numbers()]

    def changed(self, **options: Any) -> Rule:
        """The same rule with other values. Raises ValueError for an option that it has not."""
        known = [field.name for field in fields(self)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise ValueError(
                f"{type(self).__name__} has no option {unknown[0]!r}, expected "
                f"{', '.join(known) or 'none'}"
            )
        return replace(self, **options)

    def _numbers(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


def check_rule(what: str, value: Any) -> None:
    """Raises TypeError for what is no rule; `what` names the call and the argument."""
    if not isinstance(value, Rule):
        raise wrong_type(what, value, "a rule such as md.ps.SGD(lr=0.1)")


@dataclass(frozen=True, kw_only=True)
class Add(Rule):
    """w ← w + g: what is pushed is added, such as changes or counts."""

    name: ClassVar[str] = "add"


@dataclass(frozen=True, kw_only=True)
class Assign(Rule):
    """w ← g: what is pushed replaces what there was."""

    name: ClassVar[str] = "assign"


@dataclass(frozen=True, kw_only=True)
class SGD(Rule):
    """As torch.optim.SGD.

    d = g + weight_decay·w; v ← momentum·v + (1 − dampening)·d; w ← w − lr·v, or with nesterov
    w ← w − lr·(d + momentum·v). In the first push to the table v is d. Memory: v, where there is a
    momentum.

    Attributes:
        lr: at least 0.
        momentum, weight_decay: at least 0.
        dampening: from 0 to 1.
        nesterov: needs a momentum, and no dampening.
    """

    name: ClassVar[str] = "sgd"
    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False


@dataclass(frozen=True, kw_only=True)
class Adam(Rule):
    """As torch.optim.Adam. Source: Kingma and Ba, "Adam", arXiv:1412.6980.

    d = g + weight_decay·w; m ← β₁·m + (1 − β₁)·d; v ← β₂·v + (1 − β₂)·d²;
    w ← w − lr · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + eps). With amsgrad the largest v so far takes
    the place of v in the last formula. Memory: m and v, and the largest v with amsgrad.

    Attributes:
        lr, eps, weight_decay: at least 0.
        betas: β₁ and β₂, each at least 0 and below 1.
        amsgrad: see above.
    """

    name: ClassVar[str] = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def __post_init__(self) -> None:
        """Raises TypeError for an option that is no number, or betas that are no pair."""
        betas: Any = self.betas
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            owner = type(self).__name__
            raise wrong_type(f"{owner}: betas", betas, "two numbers, such as (0.9, 0.999)")
        super().__post_init__()

    def _numbers(self) -> list[tuple[str, Any]]:
        others = [pair for pair in super()._numbers() if pair[0] != "betas"]
        return [*others, ("beta1", self.betas[0]), ("beta2", self.betas[1])]


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """As torch.optim.AdamW. Source: Loshchilov and Hutter, arXiv:1711.05101.

    First w ← w − lr·weight_decay·w, then the step of Adam without weight_decay.
    """

    name: ClassVar[str] = "adamw"
    weight_decay: float = 1e-2


@dataclass(frozen=True, kw_only=True)
class Adagrad(Rule):
    """As torch.optim.Adagrad. Source: Duchi, Hazan and Singer, JMLR 12, 2011.

    d = g + weight_decay·w; s ← s + d²; w ← w − lr / (1 + (t − 1)·lr_decay) · d / (√s + eps).
    Memory: s.

    Attributes:
        lr, lr_decay, weight_decay, eps: at least 0.
        initial_accumulator_value: what s starts at; at least 0.
    """

    name: ClassVar[str] = "adagrad"
    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10


@dataclass(frozen=True, kw_only=True)
class FTRL(Rule):
    """FTRL-Proximal: sparse parameters for linear models. Source: McMahan et al., KDD 2013.

    σ = (√(n + g²) − √n) / lr; z ← z + g − σ·w; n ← n + g²; w ← 0 where |z| ≤ l1, else
    −(z − sign(z)·l1) / ((beta + √n) / lr + l2). Memory: z and n.

    Attributes:
        lr, beta: above 0.
        l1, l2: at least 0.
    """

    name: ClassVar[str] = "ftrl"
    lr: float
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DCASGD(Rule):
    """Asynchronous SGD with delay compensation. Source: Zheng et al., arXiv:1609.08326.

    With b the parameters that this worker has pulled last: w ← w − lr·g·(1 + lam·g·(w − b)). With
    adaptive s ← momentum·s + (1 − momentum)·g², and √(s + 1e-7) divides lam. A gradient without
    delay is plain SGD. Memory: b of each worker, and s with adaptive.

    What lam repairs depends on the scale of the gradients, less so with adaptive: start with
    adaptive and a lam of 1 to 2; the paper has 0.04 without it and 2 with it. The paper has no
    clip. Without one, too large a lam·g·(w − b) makes the next one larger still, up to NaN; with a
    clip of 1 no gradient changes its sign, and none is more than doubled.

    Attributes:
        lr, lam: at least 0.
        adaptive: see above.
        momentum: of s, at least 0 and below 1.
        clip: the most that lam·g·(w − b) counts for, up or down; 0: it counts in full.
    """

    name: ClassVar[str] = "dc_asgd"
    lr: float
    lam: float
    adaptive: bool = False
    momentum: float = 0.95
    clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class AdaDelay(Rule):
    """Shorter steps for later gradients. Source: Sra et al., "AdaDelay", AISTATS 2016.

    With τ the pushes by others between this worker's pull and its push:
    w ← w − g / (smoothness + c·√(t + τ)). No memory.

    Attributes:
        smoothness: the Lipschitz constant of the gradient, or the inverse of a first rate; above 0.
        c: at least 0.
    """

    name: ClassVar[str] = "ada_delay"
    smoothness: float
    c: float


@dataclass(frozen=True, kw_only=True)
class AdaptiveRevision(Rule):
    """Adagrad that revises earlier steps. Source: McMahan and Streeter, NeurIPS 2014.

    With G the sum of all gradients and b the part of it since this worker's pull: η = lr / √z′;
    z ← z + g² + 2·g·b; z′ ← max(z′, z); η′ = lr / √z′; w ← w − η′·g + (η − η′)·b. z and z′ start
    at 1. Memory: G, z and z′, and G of each worker's pull.

    Attributes:
        lr: at least 0.
    """

    name: ClassVar[str] = "adaptive_revision"
    lr: float


@dataclass(frozen=True, kw_only=True)
class Elastic(Rule):
    """The centre of elastic averaging. Source: Zhang, Choromanska and LeCun, arXiv:1412.6651.

    A worker pushes its parameters x in place of a gradient: w ← w + alpha·(x − w). No memory.

    Attributes:
        alpha: from 0 to 1.
    """

    name: ClassVar[str] = "elastic"
    alpha: float
