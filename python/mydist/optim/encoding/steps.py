"""The methods of a wrapped optimizer that has codecs with a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..distributed_steps import DistributedSteps
from ..distribution import Distribution
from ..strategies.steps import StrategySteps


class CodecSteps(DistributedSteps):
    """Checkpoints save what codecs keep, for each rank."""

    def rank_state_dict(self) -> dict[str, Any]:
        """What differs between ranks: what codecs have not sent so far. `Checkpoint` saves it."""
        return {"codecs": self._distribution.codec_states()}

    def load_rank_state_dict(self, state: Mapping[str, Any] | None) -> list[str]:
        """Takes what `rank_state_dict` gave on this rank; None drops it.

        Returns sentences about what is lost.
        """
        return _load(self._distribution, state)


class CodecStrategySteps(StrategySteps):
    """The same for an optimizer with a strategy."""

    def rank_state_dict(self) -> dict[str, Any]:
        """See StrategySteps, and what codecs have not sent so far."""
        return {**super().rank_state_dict(), "codecs": self._distribution.codec_states()}

    def load_rank_state_dict(self, state: Mapping[str, Any] | None) -> list[str]:
        """See StrategySteps."""
        return super().load_rank_state_dict(state) + _load(self._distribution, state)


def _load(distribution: Distribution, state: Mapping[str, Any] | None) -> list[str]:
    # A state without it is that of an optimizer without codecs.
    is_lost = distribution.load_codec_states(None if state is None else state.get("codecs", {}))
    return ["What codecs had not sent so far is lost"] if is_lost else []
