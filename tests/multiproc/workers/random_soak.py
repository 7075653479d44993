"""Random operations until a time or a number of steps: random_soak.py --seed N [--seconds S]

A step is one to six operations that are in flight together, or joining, or a change of the process
sets, or the end of the job and a new one. Some steps come again and again, so that the schedule
freezes. Rank 0 prints one line, `SOAK {…}`: what was done, and what each rank held more after the
second third than after the first, and after the last. A wrong result ends the job, with seed and
step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections import Counter

import torch
from multiproc.held_resources import held
from multiproc.pretended_hosts import pretend_hosts
from multiproc.random_operations import OPERATIONS, Draw, Finish
from multiproc.reference import expect_equal, make, reduce

import mydist as md

# Steps between two questions whether the time is up.
LOOK_EVERY = 50
REPORT_SECONDS = 60.0
THIRDS = 3


class Soak:
    """The random program of one rank."""

    def __init__(self, seed: int, wrong: int | None) -> None:
        self.seed = seed
        self.wrong = wrong
        self.step = 0
        self.counts: Counter[str] = Counter()
        self.sets: list[md.ProcessSet] = []
        self.begin()

    def begin(self) -> None:
        """A job, and the sets of its ranks that are drawn from."""
        md.init()
        self.sets = [md.global_process_set]
        self.add_set(random.Random(self.seed))

    def add_set(self, rng: random.Random) -> None:
        if md.size() < 2:
            return
        ranks = sorted(rng.sample(range(md.size()), rng.randint(1, md.size() - 1)))
        self.sets.append(md.add_process_set(ranks))

    def renew(self) -> None:
        """Ends the job and begins another one, which holds no more than the first one did."""
        md.barrier()  # Others may have a set of their own to finish with.
        md.shutdown()
        self.begin()

    def held_anew(self) -> dict[str, int]:
        """What a job holds that has done nothing yet: buffers of its sizes are no growth."""
        self.renew()
        held()  # Which allocates, the first time.
        return held()

    def run_step(self) -> None:
        """The next step; the same on all ranks."""
        rng = random.Random(f"{self.seed}.{self.step}")
        kind = rng.random()
        if kind < 0.004:
            self.renew()
            self.counts["cycle"] += 1
        elif kind < 0.02:
            self.change_sets(rng)
        elif kind < 0.04:
            self.join(rng)
        else:
            state = rng.getstate()
            for _ in range(30 if kind > 0.98 else 1):
                rng.setstate(state)
                self.operations(rng)
        self.step += 1

    def operations(self, rng: random.Random) -> None:
        """Several in flight; each rank finishes them in an order of its own."""
        names, weights = zip(*((name, row[1]) for name, row in OPERATIONS.items()), strict=True)
        finishes: list[Finish] = []
        for place in range(rng.randint(1, 6)):
            kind = rng.choices(names, weights)[0]
            chosen = rng.choice(self.sets)
            name = f"{kind}.{place}" if rng.random() < 0.7 else None
            is_async = rng.random() < 0.6
            own = random.Random(rng.random())  # An operation may draw more on some ranks.
            if md.rank() not in chosen.ranks:
                continue
            is_wrong = self.wrong is not None and self.step >= self.wrong and md.rank() == 0
            draw = Draw(own, self.step + place + is_wrong, chosen, name, is_async)
            finishes.append(OPERATIONS[kind][0](draw))
            self.counts[kind] += 1
        random.shuffle(finishes)
        for finish in finishes:
            finish()

    def change_sets(self, rng: random.Random) -> None:
        """One set goes, another one comes."""
        if len(self.sets) > 1:
            md.remove_process_set(self.sets.pop())
        self.add_set(rng)
        self.counts["sets"] += 1

    def join(self, rng: random.Random) -> None:
        """Some ranks have no data left; the others go on for a while."""
        early = set(rng.sample(range(md.size()), rng.randint(1, md.size() - 1)))
        late = [rank for rank in range(md.size()) if rank not in early]
        if md.rank() in late:
            for number in range(rng.randint(1, 3)):
                inputs = [make(rank, torch.int64, (7,), seed=self.step) for rank in late]
                mine = inputs[late.index(md.rank())]
                got = md.allreduce(mine, op=md.Sum, name=f"late.{number}")
                expect_equal(got, reduce(inputs, "Sum"))
        last = md.join()
        assert md.allgather_object(last) == [last] * md.size()
        self.counts["join"] += 1

    def agrees(self, is_time: bool) -> bool:
        """What rank 0 thinks."""
        word = torch.tensor([int(is_time)])
        return bool(md.broadcast_(word, 0, name="soak.time").item())


def say(text: str) -> None:
    """From one rank."""
    if md.rank() == 0:
        print(text, flush=True)


def run(soak: Soak, options: argparse.Namespace) -> dict[str, object]:
    """Until it is over; gives what was done."""
    began = reported = time.monotonic()
    marks: list[tuple[int, dict[str, int]]] = []

    def progress() -> float:
        passed = (time.monotonic() - began) / options.seconds if options.seconds else 0.0
        return max(passed, soak.step / options.steps if options.steps else 0.0)

    while len(marks) < THIRDS:
        for _ in range(LOOK_EVERY):
            soak.run_step()
        if soak.agrees(progress() >= (len(marks) + 1) / THIRDS):
            marks.append((soak.step, soak.held_anew()))
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            operations, rss = sum(soak.counts.values()), held()["private_bytes"]
            say(f"soak: step {soak.step}, {operations} operations, RSS {rss >> 10} KiB")
    growth = [
        {"steps": step - earlier, **{name: after[name] - before[name] for name in after}}
        for (earlier, before), (step, after) in itertools.pairwise(marks)
    ]
    return {
        "steps": soak.step,
        "seconds": round(time.monotonic() - began, 1),
        "counts": dict(sorted(soak.counts.items())),
        "growth": md.allgather_object(growth),
    }


def main() -> None:
    """As the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--wrong", type=int, help="from this step on, rank 0 has other inputs")
    options = parser.parse_args()
    pretend_hosts()
    soak = Soak(options.seed, options.wrong)
    say(f"soak: seed {options.seed}, {md.size()} ranks")
    try:
        outcome = run(soak, options)
    except BaseException:
        print(f"soak: failed with seed {options.seed} in step {soak.step}", file=sys.stderr)
        raise
    say(f"SOAK {json.dumps(outcome)}")
    md.shutdown()


if __name__ == "__main__":
    main()
