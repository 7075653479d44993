"""Trains with elastic.run, keeps a ledger of samples, and ends ranks as the test plans it.

Usage: elastic_training.py FOLDER SAMPLES EPOCHS [KEY=VALUE …]. Events are appended to
FOLDER/events.PID, a JSON object a line with the time. Keys:
kill=RANK@STEP,…: SIGKILL of that rank before that step, once per place, never of the last rank;
stop=RANK@STEP,…: the same with SIGSTOP;
sync=SIZE: SIGKILL of rank 1 when it is about to take the state in a job of that size;
meet=EPOCH@ROUND: SIGKILL of rank 1 when ranks have met so often in the start of that epoch;
wait=SIZE@STEP,…: before that step the job waits until it has as many ranks;
step=SECONDS: each step takes so long; raise=STEP: an exception on all ranks;
way=NAME: another way to communicate.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import mydist as md
from mydist.job import bootstrap

FOLDER, SAMPLES, EPOCHS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
OPTIONS = dict(option.split("=", 1) for option in sys.argv[4:])
BATCH = 2
LOG = (FOLDER / f"events.{os.getpid()}").open("a", buffering=1)


def tell(event: str, **facts: object) -> None:
    LOG.write(json.dumps({"event": event, "at": time.time(), **facts}) + "\n")


def once(name: str) -> bool:
    """Whether this is the first process that asks for the name."""
    try:
        (FOLDER / f"once.{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def due(option: str, step: int) -> bool:
    places = OPTIONS.get(option, "").split(",")
    place = f"{md.rank()}@{step}"
    return place in places and md.size() > 1 and once(f"{option}.{place}")


def doomed_exchange(environment: Any, attempt: str, *place: Any) -> Any:
    """As launcher_exchange, for a rank that dies in the middle."""
    exchange, close = launcher_exchange(environment, attempt, *place)
    rounds = itertools.count(1)

    def met(blob: bytes) -> list[bytes]:
        answer: list[bytes] = exchange(blob)
        if OPTIONS.get("meet") == f"{attempt}@{next(rounds)}" and place[0] == 1 and once("meet"):
            tell("kill", rank=1)
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return met, close


launcher_exchange = bootstrap.launcher_exchange
bootstrap.launcher_exchange = doomed_exchange
tell("start")
torch.manual_seed(1)
data = torch.randn(SAMPLES, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
md.init()
tell("init", rank=md.rank(), size=md.size())
WAYS: dict[str, dict[str, Any]] = {
    "": {},
    "local_sgd": {"communication": md.LocalSGD(every=4)},
    "int8": {"compression": md.Compression.int8()},
    "adasum": {"op": md.Adasum},
}
optimizer = md.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), **WAYS[OPTIONS.get("way", "")]
)
sampler = md.elastic.ElasticSampler(data, seed=3)
state = md.elastic.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, epoch=0, step=0, ledger=[]
)
state.register_reset_callbacks([lambda: tell("reset", rank=md.rank(), size=md.size())])
plain_sync = state.sync


def doomed_sync() -> None:
    is_due = OPTIONS.get("sync") == str(md.size()) and md.rank() == 1
    if is_due and state.step and once("sync"):
        tell("kill", rank=1)
        os.kill(os.getpid(), signal.SIGKILL)
    plain_sync()


state.sync = doomed_sync  # type: ignore[method-assign]


@md.elastic.run
def train(state: md.elastic.TorchState) -> None:
    is_first = True
    while state.epoch < EPOCHS:
        sampler.set_epoch(state.epoch)
        loader = torch.utils.data.DataLoader(range(SAMPLES), batch_size=BATCH, sampler=sampler)
        for number, batch in enumerate(loader):
            for option, signum in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)):
                if due(option, state.step):
                    tell("kill", rank=md.rank())
                    os.kill(os.getpid(), signum)
            for place in filter(None, OPTIONS.get("wait", "").split(",")):
                size, _, step = place.partition("@")
                while state.step == int(step) and md.size() < int(size):
                    time.sleep(0.02)
                    state.check_host_updates()
            if OPTIONS.get("raise") == str(state.step):
                raise RuntimeError("a mistake in the program")
            time.sleep(float(OPTIONS.get("step", 0)))
            optimizer.zero_grad()
            model(data[batch]).square().mean().backward()
            optimizer.step()
            if is_first:
                tell("first", rank=md.rank(), size=md.size(), step=state.step)
                is_first = False
            # The ledger of all ranks, as it is committed with the weights.
            taken = md.allgather_object(batch.tolist())
            state.ledger = [*state.ledger, (state.epoch, taken)]
            sampler.record_batch(number, BATCH)
            state.step += 1
            state.commit()
        state.epoch += 1
    tell("done", rank=md.rank(), size=md.size())


train(state)
optimizer.finish()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
tell(
    "end",
    rank=md.rank(),
    size=md.size(),
    weights=weights.tolist(),
    ledger=state.ledger,
    step=state.step,
    data=data.tolist(),
)
