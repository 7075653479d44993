"""Trains a small network on scikit-learn's digits with each codec; rank 0 prints what came out.

Arguments: whether codecs also encode inside a host (0 or 1), and the names of codecs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from multiproc.pretended_hosts import pretend_hosts
from sklearn.datasets import load_digits

import mydist as md

STEPS, BATCH, RATE = 450, 32, 0.15
C = md.Compression

# By name: the codec, its learning rate, and the optimizer's momentum.
CODECS: dict[str, tuple[Callable[[bool], Any], float, float]] = {
    "int8": (lambda force: C.int8(force=force), RATE, 0.5),
    "fp8": (lambda force: C.fp8(force=force), RATE, 0.5),
    "onebit": (lambda force: C.onebit(force=force), RATE, 0.5),
    "signsgd": (lambda force: C.signsgd(force=force), 0.003, 0.0),
    "qsgd": (lambda force: C.qsgd(force=force), RATE, 0.5),
    "terngrad": (lambda force: C.terngrad(force=force), RATE, 0.5),
    "natural": (lambda force: C.natural(force=force), RATE, 0.5),
    "topk": (lambda force: C.topk(ratio=0.05, force=force), RATE, 0.5),
    "randomk": (lambda force: C.randomk(ratio=0.1, force=force), RATE, 0.0),
    "threshold": (lambda force: C.threshold(4e-3, force=force), RATE, 0.5),
    "dgc": (lambda force: C.dgc(ratio=0.05, momentum=0.5, force=force), RATE, 0.0),
    "powersgd": (lambda force: C.powersgd(rank=2, force=force), RATE, 0.5),
}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),  # Its weight, and the next, are encoded.
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def trained(name: str, force: bool, images: Any, labels: Any) -> dict[str, float]:
    """Accuracy on every fifth image, after training on this rank's share of the others; bytes."""
    make, rate, momentum = CODECS[name]
    model = network()
    before = md.stats()
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum),
        named_parameters=model.named_parameters(),
        compression=make(force),
    )
    is_test = np.arange(len(images)) % 5 == 4
    own = np.flatnonzero(~is_test)[md.rank() :: md.size()]
    random = np.random.default_rng(md.rank())
    for _ in range(STEPS):
        rows = torch.from_numpy(random.choice(own, BATCH, replace=False))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    md.check_consistency(model)
    with torch.no_grad():
        found = model.eval()(images[is_test]).argmax(dim=1)
    counted = {
        key: md.stats()[key] - before.get(key, 0) for key in ("codec_raw_bytes", "codec_wire_bytes")
    }
    return {"accuracy": float((found == labels[is_test]).float().mean()), **counted}


def main() -> None:
    torch.set_num_threads(1)
    force, names = sys.argv[1] == "1", sys.argv[2:]
    pretend_hosts()
    md.init()
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target)
    results = {name: trained(name, force, images, labels) for name in names}
    if md.rank() == 0:
        print("TRAINED " + json.dumps(results), flush=True)
    md.shutdown()


if __name__ == "__main__":
    main()
