"""The choice: which compression an optimizer has been given, and whether anything is encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import _C
from ...codecs.codec import Codec
from ...collectives.compression import Compression, CompressorLike
from ...job.process_set import ProcessSet
from .places import Places

# By the pattern of the names that each takes.
ByPattern = Mapping[str, "Codec | CompressorLike"]


def by_pattern(compression: Any) -> ByPattern:
    """The argument as a mapping; "*" takes all if it is a single one."""
    return compression if isinstance(compression, Mapping) else {"*": compression}


def places_of(process_set: ProcessSet) -> Places:
    """The hosts of the ranks of a set. ValueError before mydist.init()."""
    hosts = _C.topology().hosts
    return Places([hosts[rank] for rank in process_set.ranks], process_set.rank())


def is_encoded(choices: ByPattern, places: Places) -> bool:
    """Whether any codec has something to do: ranks of one host exchange exact values."""
    return has_momentum(choices) or any(
        isinstance(choice, Codec) and (choice.force or not places.is_one_host)
        for choice in choices.values()
    )


def has_momentum(choices: ByPattern) -> bool:
    """Whether any codec has a momentum of its own, which gradients get however they travel."""
    return any(
        isinstance(choice, Codec) and choice.own_momentum is not None for choice in choices.values()
    )


def without_codecs(choices: ByPattern) -> ByPattern:
    """Compressors stay, and what a codec would take travels as it is."""
    return {
        pattern: Compression.none if isinstance(choice, Codec) else choice
        for pattern, choice in choices.items()
    }


def text(choices: ByPattern) -> str:
    """As ranks compare it and as errors show it; empty if there is no codec."""
    if not any(isinstance(choice, Codec) for choice in choices.values()):
        return ""
    texts = {
        pattern: str(choice) if isinstance(choice, Codec) else _name(choice)
        for pattern, choice in choices.items()
    }
    if list(texts) == ["*"]:
        return texts["*"]
    return "{" + ", ".join(f"{pattern!r}: {of_it}" for pattern, of_it in texts.items()) + "}"


def _name(compressor: Any) -> str:
    return str(getattr(compressor, "__name__", type(compressor).__name__))
