"""Which buckets a job gets, and that it says once why: in the log, and in `mydist.explain()`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from multiproc.job import launch

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

# Nine gradients of 256 KiB.
JOB = """
import json, torch, mydist as md
md.init()
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(9)))
optimizer = md.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 256)).sum().backward()
    optimizer.step()
facts = {topic: [fact.choice, fact.reason] for topic, fact in md.explain().facts.items()}
buckets = [len(names) for names in optimizer._distribution.paths[0].buckets()]
if md.rank() == 0:
    print("REPORT " + json.dumps({"facts": facts, "buckets": buckets}))
md.shutdown()
"""
CHOSEN = re.compile(
    r"reduces 9 gradients of 2359296 bytes in (\d+) buckets of up to (\d+) bytes: (.*)"
)


def run_job(*flags: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What rank 0 reports, and what the one line in the log says was chosen."""
    flags = ("--log-level", "info", *flags)
    outcome = launch(2, "local", "-c", JOB, flags=flags).expect_success()
    (report,) = re.findall(r"REPORT (.*)", outcome.output)
    (chosen,) = CHOSEN.findall(outcome.output)
    return json.loads(report), chosen


def test_the_size_that_is_asked_for() -> None:
    report, chosen = run_job("--bucket-size-mb", "1")
    # The first bucket has a quarter of the size.
    assert report["buckets"] == [1, 4, 4]
    assert chosen == ("3", str(1 << 20), "MYDIST_BUCKET_SIZE_MB is set")
    choice, reason = report["facts"]["buckets"]
    assert choice.startswith("9 gradients in 3 buckets; ")
    assert (
        reason == "the first has up to 0.25 MiB, others up to 1 MiB: MYDIST_BUCKET_SIZE_MB is set"
    )
    assert report["facts"]["latency"] == ["not measured", "MYDIST_BUCKET_SIZE_MB is set"]


def test_the_size_that_is_chosen_from_what_was_measured() -> None:
    report, chosen = run_job()
    count, size, why = chosen
    assert sum(report["buckets"]) == 9
    assert len(report["buckets"]) == int(count)
    assert report["facts"]["buckets"][1].endswith(f"MiB: {why}")
    factors = re.fullmatch(r"sqrt\((\S+) MB x (\S+) us x (\S+) GB/s\)", why)
    assert factors is not None, why
    total, latency, speed = map(float, factors.groups())
    assert total == 2.36
    # In bytes: MB x us x GB/s is 10^9 of them squared; the factors have three digits.
    wanted = (total * latency * speed * 1e9) ** 0.5
    at_least = 256 << 10
    assert abs(int(size) - max(wanted, at_least)) < 0.01 * wanted
    latency_fact, said = report["facts"]["latency"]
    parts = re.fullmatch(r"(\S+) us measured by init\(\): .*; (\S+) us assumed for wake-ups", said)
    assert parts is not None, said
    measured, assumed = map(float, parts.groups())
    assert measured > 0
    assert assumed == 80
    assert float(latency_fact.removesuffix(" us")) == pytest.approx(measured + assumed, abs=0.02)
