"""The measurement behind Compression.auto: what a job's hosts and links take."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from ...codecs.auto import Auto, Choice, choose, measure_candidates
from ...codecs.codec import Codec
from ...collectives import allreduce, alltoall
from ...collectives.compression import Compression, CompressorLike
from ...job.process_set import ProcessSet
from ...job.topology import when_job_ends
from ...reduce_op import Max
from .choice import ByPattern, places_of
from .places import Places

_LINK_BYTES = 4 << 20  # That each host sends to the others.
_WARM_UP_BYTES = 1 << 16  # Makes the connections.
_RUNS = 3
_LONG_S = 0.2  # A run of that length is not repeated.

# Of this job, by ranks and argument: optimizers share them.
_choices: dict[tuple[tuple[int, ...], Auto], Choice] = {}
when_job_ends(_choices.clear)


def described() -> list[tuple[str, str]]:
    """The choices of this job and their reasons, for mydist.explain()."""
    return [
        (f"{_text(choice.name)} by {auto}", choice.reason())
        for (_, auto), choice in _choices.items()
    ]


def is_automatic(choices: ByPattern) -> bool:
    """Whether anything is still to be chosen."""
    return any(isinstance(choice, Auto) for choice in choices.values())


def settled(choices: ByPattern, process_set: ProcessSet) -> dict[str, Codec | CompressorLike]:
    """The same with what is chosen in place of auto. Collective."""
    return {
        pattern: decide(choice, process_set) if isinstance(choice, Auto) else choice
        for pattern, choice in choices.items()
    }


def decide(auto: Auto, process_set: ProcessSet) -> Codec | CompressorLike:
    """What auto takes, the same on all ranks. Collective, and measures at the first call."""
    places = places_of(process_set)
    if auto.force:
        places = Places.apart(places.size, places.rank)
    if places.is_one_host:
        return Compression.none
    key = tuple(process_set.ranks), auto
    if key not in _choices:
        _choices[key] = _measure(auto, process_set, places)
    name = _choices[key].name
    return Compression.int8(force=auto.force) if name == "int8" else getattr(Compression, name)


def _text(name: str) -> str:
    return str(Compression.int8()) if name == "int8" else name


def _measure(auto: Auto, process_set: ProcessSet, places: Places) -> Choice:
    name = f"codec.auto.{process_set.process_set_id}"
    options: dict[str, Any] = {"process_set": process_set}
    seconds = _link_seconds(places, name, options)
    costs = measure_candidates()
    own = [[cost.encode_ms, cost.decode_ms] for cost in costs.values()]
    # The slowest rank counts, and all ranks choose by the same figures.
    slowest = allreduce(_doubles(own), op=Max, name=f"{name}.costs", **options).tolist()
    costs = {
        codec: replace(cost, encode_ms=encode_ms, decode_ms=decode_ms)
        for (codec, cost), (encode_ms, decode_ms) in zip(costs.items(), slowest, strict=True)
    }
    gbits = 8e-9 * _LINK_BYTES / seconds
    return choose(costs, gbits, len(places.members), auto.max_error)


def _link_seconds(places: Places, name: str, options: dict[str, Any]) -> float:
    """The least time in which each host sends _LINK_BYTES to the others."""
    _exchange(places, _WARM_UP_BYTES, name, options)
    least = float("inf")
    for _ in range(_RUNS):
        begin = time.perf_counter()
        _exchange(places, _LINK_BYTES, name, options)
        own = _doubles([time.perf_counter() - begin])
        seconds = allreduce(own, op=Max, name=f"{name}.link_s", **options).item()
        least = min(least, seconds)
        if seconds > _LONG_S:
            break
    return least


def _exchange(places: Places, size_bytes: int, name: str, options: dict[str, Any]) -> None:
    """Each host sends so many bytes to the others, each rank its part."""
    here = places.hosts[places.rank]
    elsewhere = [rank for rank in range(places.size) if places.hosts[rank] != here]
    part = size_bytes // (len(places.neighbours) * len(elsewhere))
    splits = [part if places.hosts[rank] != here else 0 for rank in range(places.size)]
    data = torch.zeros(sum(splits), dtype=torch.uint8, device="cpu")
    alltoall(data, splits=splits, name=f"{name}.link", **options)


def _doubles(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")
