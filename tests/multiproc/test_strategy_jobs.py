"""Strategies in jobs of their own: a rank that goes in a round, a mismatch, the timeline."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from deep import deep

from multiproc.job import WORKERS, launch

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

COST = str(WORKERS / "strategy_cost.py")
FAULTS = str(WORKERS / "strategy_faults.py")
# A mean that was under way when the rank went is used: it had arrived.
ARRIVED = {"streaming"}


@pytest.mark.parametrize(
    ("backend", "way", "call", "victim"),
    [
        ("local", "fail", "step", 1),
        ("local", "kill", "finish", 2),
        ("gloo", "leave", "step", 0),
        deep("gloo", "exit", "finish", 0),
        deep("local", "leave", "finish", 0),
        deep("local", "kill", "step", 0),
        deep("gloo", "kill", "step", 2),
    ],
)
def test_survivors_hold_the_model_of_the_last_round(
    backend: str, way: str, call: str, victim: int, tmp_path: Path
) -> None:
    env = {"MYDIST_SHUTDOWN_SECONDS": "1"}
    outcome = launch(3, backend, FAULTS, str(tmp_path), str(victim), way, call, env=env)
    survivors = {0, 1, 2} - {victim}
    paths = {rank: tmp_path / f"rank{rank}.json" for rank in range(3)}
    assert {rank for rank, path in paths.items() if path.exists()} == survivors, outcome.output
    reports = [json.loads(paths[rank].read_text()) for rank in survivors]
    for name in reports[0]:
        of_ranks = [report[name] for report in reports]
        for row in of_ranks:
            assert row["error"] in ("PeerLostError", "AbortedError"), (name, row, outcome.output)
            assert row["moved"] and row["restored"], (name, row)
            assert row["same anchors"] or name in ARRIVED, (name, row)
        assert len({row["digest"] for row in of_ranks}) == 1, (name, of_ranks)


MISMATCH = """
import torch, mydist as md
md.init()
model = torch.nn.Linear(3, 2)
md.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = md.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    communication=md.LocalSGD(4) if md.rank() == 1 else None,
)
model(torch.ones(1, 3)).sum().backward()  # Reduces gradients on one of them.
try:
    optimizer.step()
except md.MismatchError as error:
    print("REFUSED " + str(error).replace(chr(10), " | "))
"""


@pytest.mark.parametrize("backend", ["local", deep("gloo"), deep("mpi")])
def test_a_mismatch_is_told_while_gradients_are_under_way(backend: str) -> None:
    outcome = launch(2, backend, "-c", MISMATCH)
    refused = [line for line in outcome.output.splitlines() if "REFUSED " in line]
    assert len(refused) == 2, outcome.output
    for line in refused:
        assert "rank 0: SynchronousGradients()" in line, line
        assert "rank 1: LocalSGD(every=4, momentum='keep', weighted=False)" in line, line


ROUNDS = """
import torch, mydist as md
md.init()
model = torch.nn.Linear(3, 2)
md.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = md.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    named_parameters=model.named_parameters(),
    communication=md.LocalSGD(2),
)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
optimizer.finish()
assert md.stats()["strategy_rounds"] == 3
"""


def test_rounds_are_in_the_timeline(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    flags = ["--timeline-filename", str(path)]
    launch(2, "local", "-c", ROUNDS, flags=flags).expect_success()
    content = json.loads(path.read_text())
    events = content["traceEvents"] if isinstance(content, dict) else content
    for rank in range(2):
        of_rank = [event for event in events if event["pid"] == rank]
        (lane,) = [
            event["tid"]
            for event in of_rank
            if event["name"] == "thread_name" and event["args"]["name"] == "strategy.weight"
        ]
        own = [event for event in of_rank if event["tid"] == lane and event["ph"] in "BEX"]
        # Rank 0 may write the beginning of a round before its end: as "B" and "E", else "X".
        rounds = [event for event in own if event["ph"] != "E" and event["name"] == "ROUND"]
        moments = [at for e in own for at in (e["ts"], e["ts"] + e.get("dur", 0))]
        assert moments == sorted(moments) and len(rounds) == 3, own
        assert sum({"B": 1, "E": -1, "X": 0}[event["ph"]] for event in own) == 0, own
        texts = [str(event["args"]) for event in rounds]
        for text, label in zip(texts, ("1: round", "2: round", "3: finish"), strict=True):
            assert f"round {label}" in text, texts


@pytest.mark.deep
def test_a_local_step_costs_little_more_than_a_plain_one() -> None:
    """At most 2 % of a step of 5 ms or more."""
    outcome = launch(1, "local", COST, timeout=120).expect_success()
    (found,) = re.findall(r"COST (\S+) (\S+)", outcome.output)
    milliseconds, percent = map(float, found)
    assert milliseconds >= 5, outcome.output
    assert percent <= 2, outcome.output
