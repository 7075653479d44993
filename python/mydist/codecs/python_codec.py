"""PythonCodec: base of the codecs that users write in Python."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..errors import MydistError
from .codec import Codec, CodecCore

__all__ = ["PythonCodec"]

# Of a payload: the codec, whether all values are finite, and how many bytes and values follow.
_HEADER = struct.Struct("<IIqq")


@dataclass(frozen=True, kw_only=True)
class PythonCodec(Codec):
    """Base of a codec in Python: override `encode` and `decode`. Slow: no loop of it is compiled.

    A subclass is a frozen dataclass, whose fields are its arguments:

        @dataclass(frozen=True)
        class Bfloat16(md.PythonCodec):
            def encode(self, values):
                return values.to(torch.bfloat16).view(torch.uint8)

            def decode(self, payload, count):
                return payload.view(torch.bfloat16).float()

    Both methods are called for parts of gradients, and must give the same for the same arguments on
    every rank. With `keeps_residual = True` mydist adds what was not sent to the next gradient, and
    saves it in checkpoints; a codec whose errors do not cancel out needs that.

    Args:
        force: encode also between ranks of one host.

    Attributes:
        keeps_residual: whether what was not sent is kept. False.
        is_fixed: whether `encode` gives `max_bytes(count)` bytes, whatever the values are. Then the
            ranks need not negotiate in each step. False.
    """

    name: ClassVar[str] = "PythonCodec"
    keeps_residual: ClassVar[bool] = False
    is_fixed: ClassVar[bool] = False
    force: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The payload: a flat tensor of uint8 on the CPU.

        Args:
            values: flat float32 on the CPU, all finite; must not be modified.
        """
        raise NotImplementedError(f"{self.name} must implement encode(values)")

    def decode(self, payload: torch.Tensor, count: int) -> torch.Tensor:
        """The values: flat float32 on the CPU, `count` of them.

        Args:
            payload: what `encode` returned for as many values, perhaps on another rank.
        """
        raise NotImplementedError(f"{self.name} must implement decode(payload, count)")

    def max_bytes(self, count: int) -> int:
        """The most bytes that `encode` returns for so many values: as many as float32 has."""
        return 4 * count

    def core(self) -> CodecCore:
        """See Codec."""
        return _PythonCore(self)


class _PythonCore:
    """See CodecCore. Framing, checks and residuals are here."""

    block = 1

    def __init__(self, codec: PythonCodec) -> None:
        self._codec = codec
        self._tag = zlib.crc32(str(codec).encode())
        self.is_fixed = codec.is_fixed
        self.state_floats = int(codec.keeps_residual)

    def max_bytes(self, count: int) -> int:
        return _HEADER.size + self._codec.max_bytes(count)

    def encode(
        self,
        values: list[torch.Tensor],
        cuts: torch.Tensor,
        states: list[torch.Tensor],
        factors: list[float],
        keys: list[int],
        out: torch.Tensor,
    ) -> tuple[list[int], bool]:
        sizes, end, all_finite = [], 0, True
        for part in self._corrected(values, cuts, states, factors):
            is_finite = bool(torch.isfinite(part).all())
            all_finite = all_finite and is_finite
            # The size must not depend on it where it is fixed.
            body = self._encoded(part if is_finite else torch.zeros_like(part))
            header = _HEADER.pack(self._tag, is_finite, body.numel(), part.numel())
            size = _HEADER.size + body.numel()
            out[end : end + _HEADER.size] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
            out[end + _HEADER.size : end + size] = body
            sizes.append(size)
            end += size
        return sizes, all_finite

    def is_finite(self, payloads: torch.Tensor, counts: torch.Tensor) -> bool:
        every = [finite for _, finite in self._bodies(payloads, counts.tolist())]
        return all(every)  # All of them are checked, too.

    def decode_add(
        self, payloads: torch.Tensor, cuts: torch.Tensor, scale: float, out: list[torch.Tensor]
    ) -> None:
        rows = cuts.tolist()
        bodies = self._bodies(payloads, [count for *_, count in rows])
        for (tensor, begin, count), (body, is_finite) in zip(rows, bodies, strict=True):
            target = out[tensor][begin : begin + count]
            if is_finite:
                target.add_(self._decoded(body, count), alpha=scale)
            else:
                target.fill_(float("nan"))

    def keep(
        self,
        values: list[torch.Tensor],
        cuts: torch.Tensor,
        states: list[torch.Tensor],
        factors: list[float],
        payloads: torch.Tensor,
    ) -> None:
        rows = cuts.tolist()
        corrected = self._corrected(values, cuts, states, factors)
        bodies = self._bodies(payloads, [count for *_, count in rows])
        for (tensor, begin, count), part, (body, _) in zip(rows, corrected, bodies, strict=True):
            sent = self._decoded(body, count)
            torch.sub(part, sent, out=states[tensor][begin : begin + count])

    def _corrected(
        self,
        values: list[torch.Tensor],
        cuts: torch.Tensor,
        states: list[torch.Tensor],
        factors: list[float],
    ) -> Iterator[torch.Tensor]:
        """What is encoded in place of the values of each cut."""
        for tensor, begin, count in cuts.tolist():
            part = values[tensor][begin : begin + count]
            if self.state_floats:
                part = part.add(states[tensor][begin : begin + count], alpha=factors[tensor])
            yield part

    def _encoded(self, values: torch.Tensor) -> torch.Tensor:
        body = self._codec.encode(values)
        most = self._codec.max_bytes(values.numel())
        is_bytes = isinstance(body, torch.Tensor) and body.dtype == torch.uint8 and body.dim() == 1
        if not is_bytes or body.device.type != "cpu":
            got = f"{body.dtype} {tuple(body.shape)}" if isinstance(body, torch.Tensor) else body
            raise self._failure(f"encode gave {got}, expected a flat tensor of uint8 on the CPU")
        if body.numel() > most or (self.is_fixed and body.numel() != most):
            expected = f"{most}" if self.is_fixed else f"at most {most}"
            raise self._failure(
                f"encode gave {body.numel()} bytes for {values.numel()} values, expected "
                f"{expected} as max_bytes({values.numel()}) says"
            )
        return body

    def _decoded(self, body: torch.Tensor, count: int) -> torch.Tensor:
        values = self._codec.decode(body, count)
        if not isinstance(values, torch.Tensor) or values.shape != (count,):
            got = tuple(values.shape) if isinstance(values, torch.Tensor) else values
            raise self._failure(f"decode gave {got}, expected a flat tensor of {count} values")
        return values

    def _bodies(
        self, payloads: torch.Tensor, counts: Sequence[int]
    ) -> Iterator[tuple[torch.Tensor, bool]]:
        """Of each payload, and whether its values are finite. Raises for a corrupt one."""
        begin = 0
        for count in counts:
            head = payloads[begin : begin + _HEADER.size]
            if head.numel() < _HEADER.size:
                raise self._corrupt("it is cut off")
            tag, is_finite, size, held = _HEADER.unpack(head.numpy().tobytes())
            begin += _HEADER.size
            if tag != self._tag or is_finite > 1:
                raise self._corrupt("it is that of another codec")
            most = self._codec.max_bytes(count)
            least = most if self.is_fixed else 0
            if held != count or not least <= size <= min(most, payloads.numel() - begin):
                raise self._corrupt(f"it has {held} values in {size} bytes, expected {count}")
            # A copy: views as wider types need an address that is a multiple of their size.
            yield payloads[begin : begin + size].clone(), bool(is_finite)
            begin += size

    def _corrupt(self, why: str) -> MydistError:
        return MydistError(f"a payload of the codec {self._codec} is corrupt: {why}")

    def _failure(self, why: str) -> MydistError:
        return MydistError(f"the codec {self._codec}: {why}")
