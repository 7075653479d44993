"""Hugging Face's Accelerate trains on images of digits. Arguments: a backend, a folder."""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from multiproc.library_runs import BACKEND, FOLDER, digits, leave, make_model
from torch.nn import functional
from torch.utils.data import DataLoader

# Of CPUs, Accelerate chooses the backend itself, but it takes a group that is there.
dist.init_process_group(BACKEND)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(1)
train, test = digits()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
model, optimizer, loader, test_loader = accelerator.prepare(
    model, optimizer, DataLoader(train, 32, shuffle=True), DataLoader(test, 32)
)
for epoch in range(3):
    for images, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(functional.cross_entropy(model(images), labels))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            optimizer.zero_grad()
    if epoch == 1:
        accelerator.save_state(f"{FOLDER}/state")
        accelerator.wait_for_everyone()  # The main rank writes.
        accelerator.load_state(f"{FOLDER}/state")
right, count = 0, 0
model.eval()
for images, labels in test_loader:
    with torch.no_grad():
        guesses = model(images).argmax(1)
    guesses, labels = accelerator.gather_for_metrics((guesses, labels))
    right, count = right + int((guesses == labels).sum()), count + len(labels)
assert count == len(test), "gather_for_metrics leaves out what fills the last batch"
leave(accelerator.unwrap_model(model), right / count)
accelerator.end_training()
