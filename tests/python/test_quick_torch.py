"""The torch that ranks of ordinary runs import: quick_torch/sitecustomize.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

QUICK_TORCH = Path(__file__).resolve().parent.parent / "quick_torch"
TRAIN = """
import sys
import torch
from torch.optim.lr_scheduler import StepLR

torch.manual_seed(1)
print(torch.rand(2, generator=torch.Generator().manual_seed(3)).tolist())
model = torch.nn.Linear(5, 1)
for kind in (torch.optim.SGD, torch.optim.Adam):
    optimizer = kind(model.parameters(), lr=0.1)
    schedule = StepLR(optimizer, 2)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(3, 5)).pow(2).sum().backward()
        optimizer.step()
        schedule.step()
        assert torch.is_grad_enabled()
        print(model.weight.tolist())
print("compiler:", "torch._dynamo" in sys.modules)
if "torch._dynamo" in sys.modules:
    sys.exit()
compiled = torch.compile(model, backend="eager")
optimizer.step(lambda: compiled(torch.ones(3, 5)).sum())
print(compiled(torch.ones(1, 5)).item(), hasattr(torch._meta_registrations, "meta_mm"))
print(torch.export.Dim("batch").__name__)
"""


def trained(*folders: Path) -> list[str]:
    path = os.pathsep.join(map(str, folders))
    done = subprocess.run(
        [sys.executable, "-c", TRAIN],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.deep
def test_it_trains_alike_and_loads_the_compiler_for_who_compiles() -> None:
    quick, whole = trained(QUICK_TORCH), trained()
    assert quick[:11] == whole[:11]
    assert whole[11:] == ["compiler: True"]
    assert quick[11] == "compiler: False"
    assert quick[12].endswith("True")
    assert quick[13:] == ["batch"]
