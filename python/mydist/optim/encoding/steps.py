"""The methods of a wrapped optimizer that has codecs with a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..distributed_steps import DistributedSteps
from ..strategies.steps import StrategySteps


class CodecSteps(DistributedSteps):
    """Checkpoints save what codecs keep, for each rank."""

    def rank_state_dict(self) -> dict[str, Any]:
        """What differs between ranks: what codecs have not sent so far. `Checkpoint` saves it."""
        return {"codecs": self._distribution.codec_states()}

    def load_rank_state_dict(self, state: Mapping[str, Any] | None) -> bool:
        """Takes what `rank_state_dict` gave on this rank; None drops it.

        Returns whether anything is lost.
        """
        return self._distribution.load_codec_states(None if state is None else state["codecs"])


class CodecStrategySteps(StrategySteps):
    """The same for an optimizer with a strategy."""

    def rank_state_dict(self) -> dict[str, Any]:
        """See StrategySteps, and what codecs have not sent so far."""
        return {**super().rank_state_dict(), "codecs": self._distribution.codec_states()}

    def load_rank_state_dict(self, state: Mapping[str, Any] | None) -> bool:
        """See StrategySteps."""
        codecs = None if state is None else state.get("codecs")
        lost = self._distribution.load_codec_states(codecs)
        return super().load_rank_state_dict(state) or lost
