"""scripts/check_architectures.py on what is no fat binary: it ends, and says where."""

from __future__ import annotations

import struct

import pytest

from scripts.check_architectures import HEADER, MAGIC, PART, fat_binaries


def fat_binary(*parts: bytes) -> bytes:
    content = b"".join(parts)
    return HEADER.pack(MAGIC, 1, HEADER.size, len(content)) + content


def part(header_bytes: int, content: bytes = b"") -> bytes:
    return PART.pack(2, 1, header_bytes, len(content), 90) + content


def test_every_part_is_counted() -> None:
    found = list(fat_binaries(fat_binary(part(PART.size, bytes(8)), part(PART.size)) * 2))
    assert found == [{("code", 90): 2}] * 2


def test_what_has_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match=f"empty part at byte {HEADER.size}"):
        list(fat_binaries(fat_binary(part(0))))
    with pytest.raises(ValueError, match="without a header at byte 0"):
        list(fat_binaries(HEADER.pack(MAGIC, 1, 0, 0)))
    with pytest.raises(struct.error):
        list(fat_binaries(bytes(3)))
