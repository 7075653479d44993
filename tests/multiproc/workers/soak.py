"""Trains for 10,000 tiny steps and reports what grew: soak.py [--leak BYTES] [--varying] [--tables]

--leak: so much more in every step. --varying: in every step rows are gathered as well, now more of
them and now fewer, so that no step is as the one before and the schedule never freezes. --tables:
tables of the parameter server are pushed to and pulled from in every step, rows in numbers that
change, and a table is made and closed in every hundredth.
Rank 0 prints one line, `GROWTH [{resource: amount}, …]`, by rank: what each of them held at the
end less what it held after the first 1,000 steps.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Callable

import torch
from multiproc.held_resources import held
from multiproc.pretended_hosts import pretend_hosts

import mydist as md

WARM_STEPS = 1_000
STEPS = 9_000

_libc = ctypes.CDLL(None)
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.malloc.restype = ctypes.c_void_p


def tables() -> Callable[[int], None]:
    """What each step does with the parameter server."""
    dense = md.ps.Table("dense", torch.zeros(300_000), md.ps.SGD(lr=1e-6))
    rows = md.ps.RowTable("rows", 1000, 8, md.ps.SGD(lr=1e-6))
    gradient, value = torch.ones(300_000), torch.empty(300_000)
    rows.pull(torch.arange(1000))  # All of them exist from now on.

    def use(number: int) -> None:
        if number % 10 == 0:
            dense.push_pull(gradient, out=value)
        ids = torch.arange(number * 7 % 50)
        handle = rows.push_async(ids, torch.ones(ids.numel(), 8))
        rows.pull(ids)
        md.synchronize(handle)
        if number % 100 == 0:
            fleeting = md.ps.Table("fleeting", torch.zeros(100), md.ps.Add())
            fleeting.push(torch.ones(100))
            fleeting.close()

    return use


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--leak", type=int, default=0)
    parser.add_argument("--varying", action="store_true")
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    pretend_hosts()
    md.init()
    torch.manual_seed(0)
    # Three buckets of the least size.
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(3)))
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-6),
        named_parameters=model.named_parameters(),
        gradient_as_buffer_view=True,
    )
    inputs = torch.full((1, 256), float(md.rank() + 1))
    kept: list[torch.Tensor | None] = []
    use_tables = tables() if options.tables else None

    def steps(count: int) -> None:
        for number in range(count):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            loss = model(inputs).pow(2).mean()
            loss.backward()
            optimizer.step()
            md.allreduce(loss.detach())  # Without a name: another one in every step.
            md.barrier()
            # A program that keeps gradients: those of one step stay while the next are made.
            kept[:] = [parameter.grad for parameter in model.parameters()] if number % 3 else []
            if options.varying:
                md.allgather(torch.ones(1 + number * 7 % 50, 2), name="rows")
            if use_tables is not None:
                use_tables(number)
            if options.leak:
                _libc.malloc(options.leak)

    steps(WARM_STEPS)
    held()  # Which allocates, the first time.
    before = held()
    steps(STEPS)
    after = held()
    everyone = md.allgather_object({name: after[name] - before[name] for name in after})
    if md.rank() == 0:
        print(f"GROWTH {json.dumps(everyone)}", flush=True)
    md.shutdown()


if __name__ == "__main__":
    main()
