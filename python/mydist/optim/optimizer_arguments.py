"""What DistributedOptimizer accepts: every wrong argument is refused before any communication."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..codecs.codec import Codec
from ..codecs.onebit import OneBit
from ..collectives.compression import Compression
from ..job.error_text import wrong_type
from ..reduce_op import Average, ReduceOp, Sum
from .gradient_names import is_named
from .name_patterns import by_pattern, checked_match
from .onebit_adam import OneBitAdam
from .strategies.strategy import Strategy
from .strategies.synchronous import SynchronousGradients


def check_optimizer(optimizer: Any) -> None:
    """Raises ValueError for what cannot be wrapped."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer is {type(optimizer).__name__}, expected a torch.optim.Optimizer"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS is not supported: its line search evaluates the loss of one rank, so ranks "
            "would take different steps; use a first-order optimizer"
        )


def check_backward_passes(passes: Any) -> None:
    """Raises ValueError for what is not a positive integer."""
    if not isinstance(passes, int) or isinstance(passes, bool) or passes <= 0:
        raise ValueError(
            f"backward_passes_per_step is {passes!r}, expected an integer of at least 1"
        )


def check_samples(count: Any) -> None:
    """Raises ValueError for what is no number of samples."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ValueError(f"count_samples: count is {count!r}, expected an int of at least 0")


def check_closure(closure: Any) -> None:
    """Raises TypeError for what step() could not call."""
    if closure is not None and not callable(closure):
        raise wrong_type("step: closure", closure, "a function that recomputes the loss, or None")


def check_compression(compression: Any, names: Sequence[str] | None = None) -> None:
    """Raises ValueError for what does not compress.

    Args:
        names: of the parameters, where a codec or a dict of patterns may stand.
    """
    if names is not None and isinstance(compression, Mapping):
        for choice in compression.values():
            check_compression(choice, names)
        by_pattern("DistributedOptimizer: compression", compression, names)
        return
    if names is not None and isinstance(compression, Codec):
        return
    expected = "Compression.none, .fp16, .bf16"
    if isinstance(compression, Codec):
        raise ValueError(
            f"compression is {compression}, expected {expected} or a Compressor; codecs are for "
            "DistributedOptimizer"
        )
    if names is not None and isinstance(compression, type) and issubclass(compression, Codec):
        is_own = getattr(Compression, compression.name, None) is compression
        name = f"Compression.{compression.name}" if is_own else compression.__qualname__
        raise ValueError(f"compression is the class {name}, expected an object; write {name}(…)")
    if not (
        callable(getattr(compression, "compress", None))
        and callable(getattr(compression, "decompress", None))
    ):
        codecs = "" if names is None else ", a codec such as Compression.int8()"
        raise ValueError(
            f"compression is {compression!r}, expected {expected}{codecs} or a "
            "Compressor with compress and decompress"
        )


def _compression_of(
    optimizer: torch.optim.Optimizer,
    compression: Any,
    op: ReduceOp,
    strategies: Mapping[str, Strategy],
) -> Any:
    """What compresses the gradients of this optimizer. Raises ValueError where they do not fit."""
    if not isinstance(optimizer, OneBitAdam):
        return compression
    if not all(isinstance(strategy, SynchronousGradients) for strategy in strategies.values()):
        raise ValueError(
            "DistributedOptimizer: OneBitAdam needs communication=SynchronousGradients(), as its "
            "momentum travels in each step"
        )
    if op != Average:
        raise ValueError(
            f"DistributedOptimizer: op={op}, expected op=Average for OneBitAdam, as a sum of "
            "momenta would grow with each step. Scale the loss instead"
        )
    if isinstance(compression, OneBit):
        return compression
    if compression is not Compression.none:
        text = str(compression) if isinstance(compression, Codec) else repr(compression)
        raise ValueError(
            f"DistributedOptimizer: compression is {text}, expected Compression.none or .onebit() "
            "for OneBitAdam, whose momentum travels as signs"
        )
    return OneBit()


def checked_compression(
    optimizer: torch.optim.Optimizer,
    compression: Any,
    names: Sequence[str],
    op: ReduceOp,
    strategies: Mapping[str, Strategy],
) -> Any:
    """The argument, or what the optimizer takes by default.

    Raises ValueError for what does not compress the gradients of these names. Codecs do not work
    with every operation, nor a dict with every strategy.
    """
    compression = _compression_of(optimizer, compression, op, strategies)
    check_compression(compression, names)
    sends_gradients = all(isinstance(one, SynchronousGradients) for one in strategies.values())
    if isinstance(compression, Mapping) and not sends_gradients:
        raise ValueError(
            "DistributedOptimizer: compression is a dict, expected one codec or Compressor with "
            "communication=; a strategy sends parts of several parameters together"
        )
    choices = compression.values() if isinstance(compression, Mapping) else [compression]
    if not sends_gradients:
        for choice in choices:
            _refuse_with_strategies(choice)
    for choice in choices:
        if isinstance(choice, Codec) and op not in (Average, Sum):
            raise ValueError(
                f"DistributedOptimizer: compression={choice} needs op=Average or Sum, got op={op}"
            )
    return compression


def _refuse_with_strategies(choice: Any) -> None:
    """Raises ValueError for a codec that is of no use for what a strategy sends."""
    if not isinstance(choice, Codec):
        return
    why = ""
    if choice.own_momentum is not None:
        why = "has a momentum of gradients, and a strategy sends parameters"
    elif choice.is_vote:
        why = "makes 1 or -1 of each value, and a strategy sends more than gradients"
    elif not choice.takes((1 << 20,)):
        why = "makes matrices smaller, and a strategy sends flat vectors"
    if why:
        raise ValueError(
            f"DistributedOptimizer: compression={choice} {why}; use another codec, or "
            "SynchronousGradients()"
        )


def refuse_second_momentum(
    compression: Any,
    optimizer: torch.optim.Optimizer,
    named: Sequence[tuple[torch.Tensor, str]],
) -> None:
    """Raises ValueError where a codec has a momentum inside and does not fit a parameter group.

    That is one with a momentum of its own, or with parameters that another codec takes: those
    would have none.
    """
    patterns = compression if isinstance(compression, Mapping) else {"*": compression}
    owner = "DistributedOptimizer: compression"
    taken = {id(p): patterns[checked_match(owner, name, patterns)] for p, name in named}
    for number, group in enumerate(optimizer.param_groups):
        choices = [taken[id(parameter)] for parameter in group["params"]]
        inside = [c for c in choices if isinstance(c, Codec) and c.own_momentum is not None]
        if not inside:
            continue
        codec = inside[0]
        for argument, momentum in (
            ("momentum", group.get("momentum", 0)),
            ("betas", group.get("betas", (0,))[0]),
        ):
            if momentum != 0:
                raise ValueError(
                    f"{owner}={codec} has a momentum inside, and parameter group {number} has "
                    f"{argument}={group[argument]}; use torch.optim.SGD with momentum=0 there"
                )
        other = next((choice for choice in choices if choice != codec), None)
        if other is not None:
            text = str(other) if isinstance(other, Codec) else getattr(other, "__name__", other)
            raise ValueError(
                f"{owner}={codec} has a momentum inside, and parameter group {number} has "
                f"parameters with {text}, which would have none; give them a group of their own"
            )


def checked_op(op: Any) -> ReduceOp:
    """The operation. Raises ValueError."""
    try:
        return ReduceOp(op)
    except ValueError:
        raise ValueError(
            f"op is {op!r}, expected Average, Sum, Min, Max, Product or Adasum"
        ) from None


def checked_predivide(factor: Any, op: ReduceOp) -> float:
    """The factor as a float. Raises ValueError when it is not positive or op is not Average."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not factor > 0:
        raise ValueError(f"gradient_predivide_factor is {factor!r}, expected a number above 0")
    if factor != 1.0 and op != Average:
        raise ValueError(
            f"gradient_predivide_factor is {factor!r} with op={op}; it needs op=Average. "
            "Scale the loss instead"
        )
    return float(factor)


def checked_strategies(communication: Any) -> dict[str, Strategy]:
    """The strategies by the pattern of their parameters; SynchronousGradients for None.

    Raises TypeError for anything else than a strategy or a mapping of them, ValueError for an empty
    one.
    """
    owner = "DistributedOptimizer: communication"
    if communication is None:
        return {"*": SynchronousGradients()}
    if not isinstance(communication, Mapping):
        return {"*": _checked_strategy(owner, communication, ", None, or a dict of strategies")}
    if not communication:
        raise ValueError(f"{owner} is an empty dict; add an entry, under the pattern '*'")
    for pattern, strategy in communication.items():
        if not isinstance(pattern, str):
            expected = "a pattern of parameter names such as 'emb.*'"
            raise wrong_type(f"{owner}: a key", pattern, expected)
        _checked_strategy(f"{owner}[{pattern!r}]", strategy)
    return dict(communication)


def _checked_strategy(owner: str, strategy: Any, others: str = "") -> Strategy:
    if not isinstance(strategy, Strategy):
        is_class = isinstance(strategy, type) and issubclass(strategy, Strategy)
        hint = f"; write {strategy.__name__}(…)" if is_class else ""
        expected = f"a strategy such as mydist.LocalSGD(every=8){others}{hint}"
        raise wrong_type(owner, strategy, expected)
    return strategy


def checked_buffers(named_buffers: Any) -> list[tuple[str, torch.Tensor]]:
    """The pairs. Raises ValueError for what is no `model.named_buffers()`."""
    buffers = list(named_buffers)
    for entry in buffers:
        if not is_named(entry) or not isinstance(entry[1], torch.Tensor):
            raise ValueError(
                f"named_buffers contains {type(entry).__name__}, expected pairs (name, buffer); "
                "pass model.named_buffers()"
            )
    return buffers


def refuse_for_strategies(
    strategies: Mapping[str, Strategy], op: ReduceOp, groups: Any, predivide: float
) -> None:
    """Raises ValueError for what only has a meaning where every step reduces all gradients."""
    first = next(iter(strategies.values()))
    if len(strategies) > 1:
        chosen, reason = "a dict of strategies", "each of which communicates in its own way"
    elif isinstance(first, SynchronousGradients):
        return
    else:
        chosen, reason = type(first).__name__, "which averages parameters instead of gradients"
    for name, value, is_default in (
        ("op", op, op == Average),
        ("groups", "given", not groups),
        ("gradient_predivide_factor", predivide, predivide == 1.0),
    ):
        if not is_default:
            raise ValueError(
                f"DistributedOptimizer: {name} is {value} with communication={chosen}, {reason}; "
                f"leave {name} out, or use SynchronousGradients()"
            )


def chosen_groups(groups: Any, num_groups: Any) -> Any:
    """`groups`, or what the older `num_groups` means. Raises ValueError when both are given."""
    if num_groups is None:
        return groups
    warnings.warn(
        "num_groups is the older name of groups; write groups instead",
        DeprecationWarning,
        stacklevel=3,
    )
    if groups is not None:
        raise ValueError(
            f"groups and num_groups={num_groups!r} are both given, expected one of them; write "
            "groups"
        )
    if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
        raise ValueError(
            f"num_groups is {num_groups!r}, expected an integer of at least 0; 0 means no groups"
        )
    return num_groups or None
