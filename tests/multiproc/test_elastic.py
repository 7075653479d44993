"""Elastic training in real processes: ranks are killed, replaced and added, and nothing is lost."""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from deep import deep

from multiproc.job import WORKERS, Outcome, job_environment, run
from multiproc.leftovers import processes_with

SCRIPT = str(WORKERS / "elastic_training.py")
FAST = ["--blacklist-cooldown-range", "0.1,1"]
NO_SPARE = ["--blacklist-cooldown-range", "1000"]


class Trained:
    """What a job has left behind."""

    def __init__(self, folder: Path, outcome: Outcome) -> None:
        self.outcome = outcome
        self.events: list[dict[str, Any]] = []
        for path in folder.glob("events.*"):
            for line in path.read_text().splitlines():
                self.events.append({**json.loads(line), "pid": int(path.suffix[1:])})
        self.events.sort(key=lambda event: event["at"])

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def sizes(self) -> list[int]:
        """The sizes of the job in which a step was taken, in order."""
        sizes = [event["size"] for event in self.of("first")]
        return [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] != size]

    def expect_whole(self, samples: int, epochs: int, is_exact: bool = True) -> None:
        """All ranks end with the same weights, which are those of a replay of the ledger, and the
        ledger has every sample of each epoch once, but for those that fill up the last batch.

        `is_exact`: the ranks average every gradient.
        """
        assert self.outcome.code == 0, self.outcome.output
        ends = self.of("end")
        assert len(ends) == ends[0]["size"], self.outcome.output
        for end in ends:
            assert end["weights"] == ends[0]["weights"]
            assert end["ledger"] == ends[0]["ledger"]
        ledger: list[tuple[int, list[list[int]]]] = ends[0]["ledger"]
        assert ends[0]["step"] == len(ledger)
        for epoch in range(epochs):
            steps = [sum(taken, []) for number, taken in ledger if number == epoch]
            assert set(sum(steps, [])) == set(range(samples))
            before_the_last = Counter(sum(steps[:-1], []))
            assert set(before_the_last.values()) <= {1}
            ranks = next(len(taken) for number, taken in reversed(ledger) if number == epoch)
            assert samples <= len(sum(steps, [])) < samples + ranks
        if is_exact:
            assert replay(ledger, ends[0]["data"]) == pytest.approx(ends[0]["weights"], abs=1e-5)

    def recoveries(self) -> list[float]:
        """Seconds from each kill to the first step of a survivor after it."""
        return [
            next(e["at"] for e in self.of("first") if e["at"] > kill["at"]) - kill["at"]
            for kill in self.of("kill")
        ]


def replay(ledger: list[tuple[int, list[list[int]]]], samples: list[list[float]]) -> list[float]:
    """The weights of one process that takes the steps of the ledger."""
    torch.manual_seed(1)
    data = torch.randn(len(samples), 4)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _, taken in ledger:
        optimizer.zero_grad()
        losses = [model(data[batch]).square().mean() for batch in taken]
        torch.stack(losses).mean().backward()
        optimizer.step()
    weights: list[float] = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return weights


def train(folder: Path, flags: list[str], samples: int, epochs: int, *options: str) -> Trained:
    command = ["-m", "mydist.launcher", *flags, "python", SCRIPT]
    arguments = [str(folder), str(samples), str(epochs), *options]
    outcome = run(["python", *command, *arguments], 120, job_environment())
    assert processes_with(str(folder)) == []
    return Trained(folder, outcome)


def test_killed_ranks_are_replaced_and_no_sample_is_lost(tmp_path: Path) -> None:
    """Rank 0 is killed, another one while the state is sent, and both are replaced."""
    flags = ["-np", "3", "--min-np", "1", *FAST]
    trained = train(tmp_path, flags, 50, 3, "kill=0@3", "sync=2", "wait=3@20")
    trained.expect_whole(50, 3)
    assert len(trained.of("kill")) == 2
    assert trained.sizes() == [3, 1, 3]
    assert len(trained.of("start")) == 5


def test_a_job_shrinks_to_one_rank(tmp_path: Path) -> None:
    """A rank dies in the first start, in a step, and where nobody is left to replace it."""
    flags = ["-np", "3", "--min-np", "1", *NO_SPARE]
    trained = train(tmp_path, flags, 40, 2, "meet=1@1", "kill=0@5")
    trained.expect_whole(40, 2)
    assert trained.sizes() == [2, 1]
    assert all(seconds < 5 for seconds in trained.recoveries()), trained.events


@pytest.mark.parametrize("round_number", [deep(n) for n in (1, 2, 3, 4)])
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_rank_is_killed_while_the_ranks_meet(
    round_number: int, epoch: int, tmp_path: Path
) -> None:
    flags = ["-np", "4", "--min-np", "1", *NO_SPARE]
    options = [f"meet={epoch}@{round_number}", "kill=0@3" if epoch == 2 else ""]
    trained = train(tmp_path, flags, 40, 2, *filter(None, options))
    trained.expect_whole(40, 2)
    assert trained.sizes()[-1] == (2 if epoch == 2 else 3)


@pytest.mark.parametrize("flags", [deep(["--gloo"])])
def test_gloo_recovers(flags: list[str], tmp_path: Path) -> None:
    flags = ["-np", "3", "--min-np", "1", *FAST, *flags]
    trained = train(tmp_path, flags, 50, 3, "kill=0@3,1@20", "wait=3@19")
    trained.expect_whole(50, 3)
    assert trained.sizes()[:3] == [3, 2, 3]


@pytest.mark.parametrize("way", [deep("local_sgd"), deep("int8"), deep("adasum")])
def test_other_ways_to_communicate_begin_anew(way: str, tmp_path: Path) -> None:
    flags = ["-np", "3", "--min-np", "1", *FAST]
    trained = train(tmp_path, flags, 50, 2, f"way={way}", "kill=0@3", "wait=3@9")
    trained.expect_whole(50, 2, is_exact=False)
    assert trained.sizes() == [3, 2, 3]


HOROVOD = """
import os, signal, sys
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(1)
data, model = torch.randn(64, 4), torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
sampler = hvd.elastic.ElasticSampler(list(range(64)))
loader = torch.utils.data.DataLoader(list(range(64)), batch_size=4, sampler=sampler)

@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, 4):
        for number, batch in enumerate(loader):
            if (hvd.rank(), state.epoch, number) == (0, 1, 2) and hvd.size() == int(sys.argv[1]):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(data[batch]).square().mean().backward()
            optimizer.step()
            state.sampler.record_batch(number, 4)
            state.commit()
        state.sampler.set_epoch(state.epoch + 1)

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)
train(state)
print("end", hvd.size(), model.weight.tolist(), flush=True)
"""


@pytest.mark.parametrize(("ranks", "left"), [deep(3, 2), deep(2, 1)])
def test_a_horovod_script_is_elastic_as_it_is(ranks: int, left: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HOROVOD)
    flags = ["--horovod", "-np", str(ranks), "--min-np", "1", "--blacklist-cooldown-range"]
    command = [
        "python",
        "-m",
        "mydist.launcher",
        *flags,
        "99",
        "99",
        "python",
        str(script),
        str(ranks),
    ]
    outcome = run(command, 120, job_environment()).expect_success()
    ends = [line.partition("end ")[2] for line in outcome.output.splitlines() if "end " in line]
    assert len(ends) == left
    assert len(set(ends)) == 1
    assert ends[0].startswith(f"{left} ")


@pytest.mark.parametrize("seconds", [deep(2)])
def test_a_stopped_rank_is_replaced(seconds: int, tmp_path: Path) -> None:
    flags = ["-np", "3", "--min-np", "1", *FAST, "--heartbeat-timeout-seconds", str(seconds)]
    trained = train(tmp_path, flags, 50, 2, "stop=1@3", "wait=3@12")
    trained.expect_whole(50, 2)
    assert trained.sizes() == [3, 2, 3]


@pytest.mark.parametrize("slots", [deep((1, 2))])
def test_hosts_come_and_go(slots: tuple[int, int], tmp_path: Path) -> None:
    """A script names one host, then two, then the second one alone."""
    hosts = tmp_path / "hosts"
    script = tmp_path / "hosts.sh"
    script.write_text(
        f"#!/bin/sh\nif grep -q '\"step\": 2[0-9]' {tmp_path}/events.*; then echo 127.0.0.2:2\n"
        f"elif grep -q first {tmp_path}/events.*; then echo localhost:1; echo 127.0.0.2:2\n"
        "else echo localhost:1; fi\n"
    )
    script.chmod(0o755)
    flags = ["--min-np", "1", "--host-discovery-script", str(script)]
    trained = train(tmp_path, flags, 80, 4, "wait=3@20", "step=0.1")
    trained.expect_whole(80, 4)
    assert trained.sizes() == [1, 3, 2], (hosts, trained.outcome.output)


@pytest.mark.parametrize("step", [deep(3)])
def test_a_mistake_of_the_program_ends_the_job(step: int, tmp_path: Path) -> None:
    trained = train(tmp_path, ["-np", "2", "--min-np", "1"], 20, 1, f"raise={step}")
    assert trained.outcome.code == 1
    assert "RuntimeError: a mistake in the program" in trained.outcome.output
    assert "all ranks of epoch 1 are lost" in trained.outcome.output


@pytest.mark.parametrize("seed", [deep(n) for n in range(4)])
def test_kills_at_random_steps(seed: int, tmp_path: Path) -> None:
    """Some ranks are killed before their replacements have come."""
    chance = random.Random(seed)
    kills = [f"{chance.randrange(4)}@{step}" for step in sorted(chance.sample(range(2, 60), 8))]
    flags = ["-np", "4", "--min-np", "1", *FAST]
    trained = train(tmp_path, flags, 120, 4, f"kill={','.join(kills)}", "step=0.05", "wait=2@30")
    trained.expect_whole(120, 4)
    assert len(trained.of("kill")) >= 3


@pytest.mark.parametrize("count", [deep(6)])
def test_recovery_takes_a_second(count: int, tmp_path: Path) -> None:
    """Four ranks; a killed one is replaced before the next one is killed."""
    steps = [10 * n for n in range(1, count + 1)]
    kills = ",".join(f"{n % 4}@{step}" for n, step in enumerate(steps))
    waits = ",".join(f"4@{step + 5}" for step in steps)
    flags = ["-np", "4", "--min-np", "1", "--blacklist-cooldown-range", "0.1"]
    trained = train(tmp_path, flags, 160, 4, f"kill={kills}", f"wait={waits}")
    trained.expect_whole(160, 4)
    seconds = trained.recoveries()
    starts = [event["at"] for event in trained.of("kill")]
    joins = [
        min(e["at"] for e in trained.of("first") if e["at"] > at and e["size"] == 4) - at
        for at in starts
    ]
    print("recovery", sorted(seconds), "replaced", sorted(joins))
    assert len(seconds) == count
    assert statistics.median(seconds) <= 1.0, seconds
