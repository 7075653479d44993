"""Gradients in shared memory and processes forked from a rank, as workers of a DataLoader are."""

from __future__ import annotations

import os
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator

import torch

import mydist as md
from multiproc.registry import check


def in_child(look: Callable[[], None], meanwhile: Callable[[], None]) -> None:
    """Runs `look` in a forked child once this process has done `meanwhile`."""
    (told, tell), (read, answer) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        text = ""
        try:
            os.read(told, 1)
            look()
        except BaseException:
            text = traceback.format_exc()
        os.write(answer, text.encode())
        os._exit(0)
    os.close(answer)
    meanwhile()
    os.write(tell, b".")
    with os.fdopen(read) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    for end in (told, tell):
        os.close(end)
    assert text == "", f"in the child:\n{text}"


# One rank alone reduces nothing, so its children may go on with backward.
@check(min_size=2)
def a_child_has_gradients_of_its_own() -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Linear(50, 3))
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        gradient_as_buffer_view=True,
    )

    def step(seed: int) -> None:
        generator = torch.Generator().manual_seed(100 * seed + md.rank())
        optimizer.zero_grad(set_to_none=False)
        model(torch.rand(4, 40, generator=generator)).pow(2).mean().backward()
        optimizer.step()

    def values() -> list[torch.Tensor]:
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    step(0)
    step(1)
    before = values()
    assert len(before) == 4

    def look() -> None:
        for mine, wanted in zip(values(), before, strict=True):
            assert torch.equal(mine, wanted), "other values than at the fork"
        for p in model.parameters():
            assert p.grad is not None
            p.grad.fill_(7.0)
        # Accumulates first, and is then told that the child is no rank.
        try:
            model(torch.ones(1, 40)).sum().backward()
        except ValueError as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError("backward reduced gradients in a forked child")

    after: list[torch.Tensor] = []

    def meanwhile() -> None:
        step(2)
        after.extend(values())
        assert not all(torch.equal(a, b) for a, b in zip(after, before, strict=True))

    in_child(look, meanwhile)
    for mine, wanted in zip(values(), after, strict=True):
        assert torch.equal(mine, wanted), "the child has changed its parent's gradients"
    step(3)
    everyone = md.allgather_object([value.tolist() for value in values()])
    assert all(other == everyone[0] for other in everyone)


QUESTIONS = (
    md.rank,
    md.size,
    md.local_rank,
    md.local_size,
    md.cross_rank,
    md.cross_size,
    md.is_homogeneous,
)


@check()
def a_child_knows_its_ranks_numbers() -> None:
    some = md.add_process_set([0]) if md.size() > 1 else md.global_process_set
    wanted = [ask() for ask in QUESTIONS]
    members, pid = some.ranks, os.getpid()

    def look() -> None:
        assert [ask() for ask in QUESTIONS] == wanted
        assert some.ranks == members and some.included() == (md.rank() in members)
        assert len(md.DistributedSampler(8 * md.size())) == 8
        assert not md.is_initialized()
        calls: dict[str, Callable[[], object]] = {
            "init": md.init,
            "barrier": md.barrier,
            "allreduce": lambda: md.allreduce(torch.ones(1)),
            "broadcast_object": lambda: md.broadcast_object(1, 0),
            "join": md.join,
        }
        for name, call in calls.items():
            try:
                call()
            except ValueError as error:
                child = f"{name}: this process (pid {os.getpid()}) is a child of rank {md.rank()}"
                assert f"{child} (pid {pid})" in str(error), error
            else:
                raise AssertionError(f"{name} was not refused")
        md.shutdown()
        assert [ask() for ask in QUESTIONS] == wanted

    in_child(look, lambda: None)
    if md.size() > 1:
        md.remove_process_set(some)


class Stream(torch.utils.data.IterableDataset[int]):
    """Can only be iterated."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(23))


def advice_of(refuse: Callable[[Stream], object]) -> str:
    try:
        refuse(Stream())
    except (TypeError, ValueError) as error:
        return textwrap.dedent(str(error).partition("\n\n")[2])
    raise AssertionError("a stream was accepted")


@check(cases=[(0,), (2,)])
def the_advice_for_streams_runs_as_pasted(workers: int) -> None:
    advice = advice_of(md.prepare_loader)
    assert advice == advice_of(md.DistributedSampler)
    names: dict[str, object] = {"dataset": Stream(), "__name__": __name__}
    options = f", num_workers={workers}" + ", multiprocessing_context='fork'" * bool(workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        exec(advice.replace("Shared(dataset))", f"Shared(dataset){options})"), names)
        loader = names["loader"]
        assert isinstance(loader, torch.utils.data.DataLoader)
        assert loader.num_workers == workers
        mine = [int(number) for number in loader]
    assert sorted(sum(md.allgather_object(mine), [])) == list(range(23))
