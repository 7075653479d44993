"""The synchronous forms wait in the call that submits: there the engine's thread is not woken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mydist as md
from mydist import _C

pytestmark = pytest.mark.usefixtures("job")


def ones() -> torch.Tensor:
    return torch.ones(4, 2)


CALLS: dict[str, tuple[str, Callable[[], Any]]] = {
    "reduce": ("reduce", lambda: md.reduce(ones(), 0)),
    "gather": ("gather", lambda: md.gather(ones())),
    "scatter": ("scatter", lambda: md.scatter(ones())),
    "allreduce": ("allreduce", lambda: md.allreduce(ones())),
    "compressed": ("allreduce", lambda: md.allreduce(ones(), compression=md.Compression.fp16)),
    "compressed in place": (
        "allreduce",
        lambda: md.allreduce_(ones(), compression=md.Compression.bf16),
    ),
    "compressed reducescatter": (
        "reducescatter",
        lambda: md.reducescatter(ones(), compression=md.Compression.fp16),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_one_call_submits_and_waits(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, run = CALLS[call]

    def refuse(*_: object) -> None:
        raise AssertionError(f"enqueue_{name} wakes the engine's thread")

    monkeypatch.setattr(_C, f"enqueue_{name}", refuse)
    assert torch.equal(run(), ones())


@pytest.mark.parametrize("direction", ["send", "recv"])
def test_messages_too(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def answer(*arguments: Any) -> list[torch.Tensor]:
        calls.append(arguments)
        return [arguments[0]]

    everybody = type(md.global_process_set)
    monkeypatch.setattr(everybody, "ranks", property(lambda _: [0, 1]))
    monkeypatch.setattr(_C, "send_receive", answer)
    tensor = ones()
    if direction == "send":
        md.send(tensor, 1)
    else:
        assert md.recv(tensor, 1) is tensor
    (arguments,) = calls
    route = (0, 1) if direction == "send" else (1, 0)
    assert arguments == (tensor, *route, f"send {route[0]}->{route[1]}.noname.1", 0)
