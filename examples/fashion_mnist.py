"""Fashion-MNIST for the other examples: 70,000 images of 28 x 28 pixels, 10 classes.

The files are those of Debian's package dataset-fashion-mnist; any folder with the same four IDX
files will do.
"""

import gzip
import sys
from pathlib import Path

import numpy as np
import torch

DATA = Path("/usr/share/datasets/fashion-mnist")


def read_idx(path: Path) -> torch.Tensor:
    """One IDX file: a magic number with the number of dimensions, the dimensions, the bytes."""
    try:
        with gzip.open(path) as file:
            content = file.read()
    except FileNotFoundError:
        sys.exit(f"{path} is missing: install Debian's dataset-fashion-mnist or pass --data FOLDER")
    dimensions = content[3]
    shape = np.frombuffer(content, dtype=">i4", count=dimensions, offset=4)
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions)
    return torch.from_numpy(values.reshape(shape.tolist()).copy())


def load(folder: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as float32 [N, 1, 28, 28] with mean 0 and deviation 1, labels as int64 [N].

    `split` is "train" (60,000) or "t10k" (10,000).
    """
    images = read_idx(folder / f"{split}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz")
    pixels = images.unsqueeze(1).float() / 255
    return (pixels - 0.2860) / 0.3530, labels.long()
