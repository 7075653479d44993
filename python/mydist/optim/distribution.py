"""Distribution: what a wrapped optimizer knows beyond the original: its shares, and where it is.

A share is the parameters that one strategy trains; see 0029.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .consistency import ConsistencyCheck
from .encoding.auto_path import AutoPath
from .encoding.keeper import Keeper
from .encoding.path import CodecPath
from .encoding.units import StepUnits
from .gradient_names import GradientNames
from .gradient_path import GradientPath, spread_overflow
from .hooked_path import densify
from .name_patterns import by_pattern, checked_match, first_match
from .pushed_gradients import first_refused
from .strategies.job import StrategyJob
from .strategies.run import StrategyRun, warn_of_another
from .strategies.strategy import Strategy


@dataclass(eq=False)
class Share:
    """The parameters of one strategy: how their gradients are reduced, and how it trains them."""

    path: GradientPath
    run: StrategyRun
    named: list[tuple[torch.Tensor, str]] = field(default_factory=list)  # Set by `register`.

    @property
    def parameters(self) -> list[torch.Tensor]:
        """In the order of the optimizer's groups."""
        return [parameter for parameter, _ in self.named]

    def compared(self) -> Iterator[tuple[torch.Tensor, str]]:
        """What is equal on all ranks: parameters, or anchors once steps are local."""
        if not self.run.has_begun:
            return iter(self.named)
        return zip(self.run.anchors(), (name for _, name in self.named), strict=True)


def make_shares(
    strategies: Mapping[str, Strategy],
    named_parameters: Sequence[tuple[torch.Tensor, str]],
    named_buffers: Sequence[tuple[str, torch.Tensor]],
    job_of: Callable[[list[torch.Tensor], str], StrategyJob],
    path_of: Callable[[StrategyRun, list[torch.Tensor]], GradientPath],
) -> dict[str, Share]:
    """A share for each strategy, by pattern; "*" if there is one. Buffers follow their names.

    `job_of` gets the buffers of a share and the name of its first parameter, `path_of` its
    parameters. Raises ValueError as `by_pattern` does.
    """
    names = [name for _, name in named_parameters]
    taken = {"*": names}
    if list(strategies) != ["*"]:
        taken = by_pattern("DistributedOptimizer: communication", strategies, names)
    if len(taken) == 1:
        strategies, taken = {"*": next(iter(strategies.values()))}, {"*": names}
    buffers: dict[str, list[torch.Tensor]] = {pattern: [] for pattern in taken}
    for name, buffer in named_buffers:
        buffers[first_match(name, taken) or list(taken)[-1]].append(buffer)
    shares = {}
    for pattern, members in taken.items():
        job = job_of(buffers[pattern], members[0] if members else "")
        run = StrategyRun(strategies[pattern], job, pattern if len(taken) > 1 else "")
        own = set(members)
        path = path_of(run, [parameter for parameter, name in named_parameters if name in own])
        shares[pattern] = Share(path, run)
    return shares


@dataclass(frozen=True)
class Renewal:
    """How the distribution of an optimizer is made again."""

    make: Callable[[torch.optim.Optimizer], Distribution]
    groups: Sequence[Sequence[torch.Tensor]]


@dataclass
class Distribution:
    """Kept in one attribute of the wrapped optimizer.

    Attributes:
        is_local: whether the next step reduces the gradients of no share.
        has_local: whether there is a share whose gradients it does not reduce.
        renewal: makes another one with the same settings for a new job, and the groups of
            parameters to register; None where that cannot be.
        check_groups: raises ValueError for parameter groups that the compression does not fit.
    """

    shares: Mapping[str, Share]  # By pattern; "*" if there is one strategy.
    names: GradientNames
    consistency: ConsistencyCheck
    units: StepUnits = field(default_factory=StepUnits)
    densifies: bool = False  # Sparse gradients become dense.
    synchronized: bool = False  # The gradients are reduced and step() has not followed yet.
    explicit: bool = False  # … by a call of synchronize(), so step() wants skip_synchronize().
    unscaled: bool = False  # A GradScaler has written into the reduced gradients since.
    agreed: bool = False  # Ranks have agreed about their overflow since.
    skip: bool = False  # Inside skip_synchronize().
    accumulating: bool = False  # Inside no_sync().
    warned: bool = False
    registered: set[int] = field(default_factory=set)  # id() of parameters with a hook.
    renewal: Renewal | None = None
    finalizers: list[weakref.finalize[..., Any]] = field(default_factory=list)  # Of paths.
    check_groups: Callable[[torch.optim.Optimizer], None] = lambda _: None

    def __post_init__(self) -> None:
        self._all = list(self.shares.values())
        self.paths = [share.path for share in self._all]
        self.runs = [share.run for share in self._all]
        self.follow()

    def register(
        self, optimizer: torch.optim.Optimizer, groups: Sequence[Sequence[torch.Tensor]] = ()
    ) -> None:
        """Gives all parameters to their shares, and hooks to those that have none yet.

        Frozen ones have hooks, too. Raises ValueError, before it changes anything, for a new
        parameter without a share, or whose share has begun.
        """
        named = list(self.names.of(optimizer))
        members: dict[str, list[tuple[torch.Tensor, str]]] = {key: [] for key in self.shares}
        for parameter, name in named:
            pattern = checked_match("DistributedOptimizer: communication", name, self.shares)
            members[pattern].append((parameter, name))
            if id(parameter) not in self.registered and self.shares[pattern].run.has_begun:
                raise ValueError(
                    "add_param_group: the strategy has anchors for the present parameters; call "
                    "finish(), add the parameters to the optimizer, and wrap it again"
                )
        group_of = self._group_names(named, groups)
        for pattern, share in self.shares.items():
            share.named = members[pattern]
            for parameter, name in share.named:
                if id(parameter) not in self.registered:
                    group, size = group_of.get(id(parameter), ("", 1))
                    share.run.job.add_parameter(parameter)
                    share.path.add_parameter(parameter, name, group, size)
                    self.registered.add(id(parameter))

    def pending(self) -> list[str]:
        """The names of the gradients that are being reduced."""
        return [name for path in self.paths for name in path.pending()]

    def touched(self) -> bool:
        """Whether a backward has followed the last reduction."""
        return any(path.touched() for path in self._reducing)

    def synchronize(self) -> None:
        """Reduces gradients, and waits; those of a local step only become dense, if that is asked.

        After an error nothing is under way.
        """
        first_error: Exception | None = None
        for path in self._reducing:
            try:
                path.synchronize()
            except Exception as error:  # Of the others all have to be waited for.
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        if self.densifies and self.has_local:
            for parameter in self._parameters():
                densify(parameter)

    def reset(self) -> None:
        """Forgets the gradients so far."""
        for path in self.paths:
            path.reset()
        self.synchronized = self.unscaled = self.agreed = False

    def check(self) -> None:
        """Compares the ranks if that is due. After an error no gradient of a first step is held."""
        try:
            self.consistency.at_step(pair for share in self._all for pair in share.compared())
        except Exception:
            for path in self.paths:
                path.let_go()
            raise

    def before_step(self) -> None:
        """Called before a step changes anything; see StrategyRun."""
        for run in self.runs:
            run.before_step()

    def end_step(self) -> None:
        """Called when a step is over.

        Raises:
            MydistError: a round failed; the parameters are those of the anchors.
        """
        self.synchronized = self.unscaled = self.agreed = False
        self.consistency.step_done()
        self.runs[0].job.step_taken()
        for run in self.runs:
            run.count_step()
        self._guarded(StrategyRun.after_step)
        if [run.is_local for run in self.runs] != self._local:
            self.follow()

    def finish(self) -> None:
        """See DistributedOptimizer.finish."""
        self._guarded(StrategyRun.finish)
        if self.runs[0].steps > 0:
            self.consistency.others_have_checked()
        self.follow()

    def expect_replaceable(self) -> None:
        """Called before another wrapper takes the optimizer. Raises ValueError to refuse."""

    def follow(self) -> None:
        """Reduces gradients from now on or leaves them alone, as the strategies say."""
        self._local = [run.is_local for run in self.runs]
        self.is_local, self.has_local = all(self._local), any(self._local)
        self._reducing = [share.path for share in self._all if not share.run.is_local]
        self._served = [
            share
            for share in self._all
            if share.run.is_local and not share.run.strategy.takes_inner_steps
        ]
        self._pushing = [
            share
            for share in self._all
            if share.run.is_local and share.run.strategy.pushes_gradients
        ]
        for path in self.paths:
            path.set_enabled(path in self._reducing and not self.accumulating)

    def served(self) -> list[torch.Tensor]:
        """The parameters that the wrapped optimizer leaves to a strategy in the next step."""
        return [parameter for share in self._served for parameter in share.parameters]

    def codec_states(self) -> dict[str, Any]:
        """What codecs keep on this rank, by what it is for and the pattern of the share."""
        return {name: keeper.state_dict() for name, keeper in self._keepers().items()}

    def load_codec_states(self, states: Mapping[str, Any] | None) -> bool:
        """Takes what `codec_states` gave, or drops all. Returns whether anything is lost."""
        keepers = self._keepers()
        if states is None:
            lost = [keeper.drop_state() for keeper in keepers.values()]
            return any(lost)
        for name, keeper in keepers.items():
            if name in states:
                keeper.load_state_dict(states[name])
        return False

    def _keepers(self) -> dict[str, Keeper]:
        found: dict[str, Keeper] = {}
        for pattern, share in self.shares.items():
            if isinstance(share.path, (AutoPath, CodecPath)):
                found[f"gradients of {pattern}"] = share.path
            if share.run.job.keeper is not None:
                found[f"rounds of {pattern}"] = share.run.job.keeper
        return found

    def agree_on_overflow(self) -> None:
        """Where gradients of some shares stay local, ranks would skip different steps. Blocking.

        All ranks see a gradient that is not finite when one rank has one.
        """
        if self.agreed or self.is_local or not self.has_local:
            return

        def agree(is_finite: bool) -> bool:
            return all(row[0] for row in self.runs[0].job.gather([int(is_finite)]))

        spread_overflow([p.grad for p in self._parameters() if p.grad is not None], agree)
        self.agreed = True

    def refuse_gradients(self) -> None:
        """Called when gradients are there, before a step changes anything.

        Where a share is reduced, all ranks would apply its gradients. So they tell each other then,
        and no rank takes a step that one of them refuses. Blocking.

        Raises:
            ValueError: a gradient for servers is not finite.
        """
        if not self._pushing:
            return
        named = (pair for share in self._pushing for pair in share.named)
        refused = first_refused(named)
        job = self.runs[0].job
        if not self.is_local:
            rows = job.gather([job.rank, int(refused is not None)])
            culprits = [job.rank_text(rank) for rank, refuses in rows if refuses]
            if not culprits:
                return
            found = refused or "a gradient that servers would get is not finite; see its error"
            raise ValueError(
                f"step() on {job.rank_text(job.rank) if refused else ', '.join(culprits)}: {found}."
                " No rank has applied anything of this step"
            )
        if refused is not None:
            for share in self._pushing:
                share.run.strategy.refuse()
            raise ValueError(
                f"step() on {job.rank_text(job.rank)}: {refused}. This rank has applied nothing of "
                "this step; other ranks go on without it"
            )

    def buffers(self) -> list[torch.Tensor]:
        """Those of all shares."""
        return [buffer for run in self.runs for buffer in run.job.buffers.tensors]

    def state_dict(self) -> dict[str, Any]:
        """Of the strategies; that of a single one is not nested."""
        return self._nested(StrategyRun.state_dict)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave. See StrategyRun; other patterns are another strategy."""
        saved = _by_pattern(state)
        if list(saved) == list(self.shares):
            for pattern, share in self.shares.items():
                share.run.load_state_dict(saved[pattern])
        else:
            for run in self.runs:
                run.load_counts(next(iter(saved.values())))
                run.begin_after_another()
            saver = _text({pattern: of_share["strategy"] for pattern, of_share in saved.items()})
            warn_of_another(saver, description(self.shares), stacklevel=4)
        self.follow()

    def begin_anew(self) -> None:
        """Forgets anchors and momenta of all shares."""
        for run in self.runs:
            run.begin_anew()

    def counts(self) -> dict[str, Any]:
        """What this rank has counted, for all shares."""
        return self._nested(StrategyRun.counts)

    def load_counts(self, counts: Mapping[str, Any]) -> None:
        """Takes what `counts` gave."""
        for pattern, saved in _by_pattern(counts).items():
            self.shares[pattern].run.load_counts(saved)
        self.follow()

    def drop_local_steps(self) -> bool:
        """Parameters become those of the last round. Whether steps of the ranks may be lost."""
        for run in self.runs:
            run.drop_local_steps()
        return any(run.has_begun or run.is_foreign for run in self.runs)

    def _parameters(self) -> Iterator[torch.Tensor]:
        return (parameter for share in self._all for parameter in share.parameters)

    def _nested(self, of_run: Callable[[StrategyRun], dict[str, Any]]) -> dict[str, Any]:
        values = {pattern: of_run(share.run) for pattern, share in self.shares.items()}
        return values["*"] if list(values) == ["*"] else {"shares": values}

    def _guarded(self, call: Callable[[StrategyRun], None]) -> None:
        """Calls it for each share. When a call fails, all go back to their anchors."""
        try:
            for run in self.runs:
                call(run)
        except BaseException:
            for run in self.runs:
                run.undo()
            raise

    def _group_names(
        self,
        named: Sequence[tuple[torch.Tensor, str]],
        groups: Sequence[Sequence[torch.Tensor]],
    ) -> dict[int, tuple[str, int]]:
        """By id() of the parameter, the name and length of its group."""
        name_of = {id(parameter): name for parameter, name in named}
        # Named after its first member, so that groups of two optimizers are not taken for one.
        return {
            id(parameter): (f"gradient_group of {name_of[id(group[0])]}", len(group))
            for group in groups
            for parameter in group
        }


def description(shares: Mapping[str, Share]) -> str:
    """The strategies with their settings; equal on all ranks."""
    return _text({pattern: share.run.strategy.describe() for pattern, share in shares.items()})


def _text(strategies: Mapping[str, str]) -> str:
    if list(strategies) == ["*"]:
        return strategies["*"]
    return "{" + ", ".join(f"{pattern!r}: {text}" for pattern, text in strategies.items()) + "}"


def _by_pattern(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `Distribution._nested` gave, by pattern."""
    shares: Mapping[str, Any] = state.get("shares", {"*": state})
    return shares
