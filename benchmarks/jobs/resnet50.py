"""The shapes of ResNet-50's parameters, from its architecture (He et al., 2015, table 1)."""

from __future__ import annotations

# Blocks per stage, width of their inner convolutions; they give out four times as much.
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
_EXPANSION = 4
_CLASSES = 1000


def parameter_shapes() -> list[tuple[int, ...]]:
    """In the order of the network: 161 shapes, 25,557,032 elements."""
    shapes: list[tuple[int, ...]] = _convolution(3, 64, 7)
    channels = 64
    for blocks, width in _STAGES:
        for block in range(blocks):
            wide = width * _EXPANSION
            shapes += _convolution(channels, width, 1)
            shapes += _convolution(width, width, 3)
            shapes += _convolution(width, wide, 1)
            if block == 0:  # Where the width changes, the shortcut has a convolution, too.
                shapes += _convolution(channels, wide, 1)
            channels = wide
    return [*shapes, (_CLASSES, channels), (_CLASSES,)]


def _convolution(before: int, after: int, side: int) -> list[tuple[int, ...]]:
    """With the weight and bias of the batch norm behind it."""
    return [(after, before, side, side), (after,), (after,)]
