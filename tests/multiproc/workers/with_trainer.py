"""The Trainer of transformers trains a small GPT-2. Arguments: a backend, a folder."""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from multiproc.library_runs import BACKEND, FOLDER, leave
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


def sequences(begin: int, count: int, length: int = 32) -> list[dict[str, torch.Tensor]]:
    """Characters of Python's standard library."""
    path = Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"
    characters = torch.tensor(list(path.read_bytes())).clamp(max=127)
    rows = characters[begin * length : (begin + count) * length].view(count, length)
    return [{"input_ids": row, "labels": row} for row in rows]


# Of CPUs, Accelerate chooses the backend itself, but it takes a group that is there.
dist.init_process_group(BACKEND)
set_seed(1)
sizes = {"vocab_size": 128, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    output_dir=FOLDER,
    use_cpu=True,
    max_steps=60,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    save_strategy="steps",
    save_steps=30,
    logging_steps=20,
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(
    model, arguments, train_dataset=sequences(0, 1600), eval_dataset=sequences(1600, 99)
)
trainer.train()
# ln 128 = 4.85 is what knowing nothing costs; 1 is the best score.
leave(model, 1 - trainer.evaluate()["eval_loss"] / math.log(128))
dist.destroy_process_group()
