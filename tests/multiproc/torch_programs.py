"""Programs of torch that replicate a model, over a backend of torch.distributed, as checks: DDP."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn

from multiproc.group_checks import new_checks, rank, size

PROGRAMS, check = new_checks()


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))


def batch_of(rank: int) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(rank))


def gradients_of_all() -> list[torch.Tensor]:
    """Of one process with the batches of all ranks."""
    whole = model()
    loss = sum(whole(batch_of(rank)).square().mean() for rank in range(size())) / size()
    loss.backward()  # type: ignore[union-attr]
    return [parameter.grad for parameter in whole.parameters() if parameter.grad is not None]


@check
def distributed_data_parallel() -> None:
    parallel = nn.parallel.DistributedDataParallel(model(seed=rank()))
    parallel.load_state_dict({f"module.{k}": v for k, v in model().state_dict().items()})
    parallel(batch_of(rank())).square().mean().backward()
    for parameter, expected in zip(parallel.parameters(), gradients_of_all(), strict=True):
        torch.testing.assert_close(parameter.grad, expected)


@check
def data_parallel_with_a_communication_hook() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    parallel = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=1)
    state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        parallel(batch_of(rank())).square().mean().backward()
    gradients = [p.grad.clone() for p in parallel.parameters() if p.grad is not None]
    for gradient in gradients:
        same = gradient.clone()
        dist.broadcast(same, 0)
        assert torch.equal(gradient, same)


class WithAnUnusedLayer(nn.Module):
    """Each call of an odd rank leaves the second layer out."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.at_times = model(), nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor, everything: bool) -> torch.Tensor:
        output = self.always(batch)
        return self.at_times(output) if everything else output


@check
def data_parallel_with_unused_parameters() -> None:
    torch.manual_seed(0)
    parallel = nn.parallel.DistributedDataParallel(WithAnUnusedLayer(), find_unused_parameters=True)
    parallel(batch_of(rank()), everything=rank() % 2 == 0).square().mean().backward()
    torch.manual_seed(0)
    whole = WithAnUnusedLayer()
    for other in range(size()):
        loss = whole(batch_of(other), everything=other % 2 == 0).square().mean() / size()
        loss.backward()
    for own, expected in zip(parallel.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad)


@check
def data_parallel_that_accumulates() -> None:
    parallel = nn.parallel.DistributedDataParallel(model(), gradient_as_bucket_view=True)
    with parallel.no_sync():
        (parallel(batch_of(rank())).square().mean() / 2).backward()
    first = next(parallel.parameters()).grad
    assert first is not None
    local = model()
    (local(batch_of(rank())).square().mean() / 2).backward()
    torch.testing.assert_close(first, next(local.parameters()).grad)
    (parallel(batch_of(rank())).square().mean() / 2).backward()
    for parameter, expected in zip(parallel.parameters(), gradients_of_all(), strict=True):
        torch.testing.assert_close(parameter.grad, expected)


@check
def data_parallel_with_a_static_graph() -> None:
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Sequential):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, batch, use_reentrant=True)

    parallel = nn.parallel.DistributedDataParallel(
        Recomputed(*model().children()), static_graph=True, bucket_cap_mb=1
    )
    for _ in range(3):  # From the second one on, DDP knows the order of the gradients.
        parallel.zero_grad()
        batch = batch_of(rank()).requires_grad_()
        parallel(batch).square().mean().backward()
        for parameter, expected in zip(parallel.parameters(), gradients_of_all(), strict=True):
            torch.testing.assert_close(parameter.grad, expected)


@check
def data_parallel_with_hooks_that_compress() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for hook, tolerance in (
        (default_hooks.allreduce_hook, 1e-6),
        (default_hooks.fp16_compress_hook, 1e-3),
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 1e-3),
    ):
        parallel = nn.parallel.DistributedDataParallel(model())
        parallel.register_comm_hook(None, hook)
        parallel(batch_of(rank())).square().mean().backward()
        for parameter, expected in zip(parallel.parameters(), gradients_of_all(), strict=True):
            torch.testing.assert_close(parameter.grad, expected, rtol=tolerance, atol=tolerance)


@check
def data_parallel_with_uneven_inputs() -> None:
    parallel = nn.parallel.DistributedDataParallel(model())
    with parallel.join():
        for _ in range(rank() + 1):
            parallel.zero_grad()
            parallel(batch_of(rank())).square().mean().backward()
    # The last step was of one rank alone: the others joined with zeros.
    gradients = [parameter.grad for parameter in parallel.parameters()]
    alone = model()
    alone(batch_of(size() - 1)).square().mean().backward()
    if rank() == size() - 1:
        for own, parameter in zip(gradients, alone.parameters(), strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(own, parameter.grad / size())


@check
def an_optimizer_that_is_split() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    parallel = nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.Adam, lr=0.1)
    whole = model()
    plain = torch.optim.Adam(whole.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        parallel(batch_of(rank())).square().mean().backward()
        optimizer.step()
        plain.zero_grad()
        loss = sum(whole(batch_of(other)).square().mean() for other in range(size())) / size()
        loss.backward()  # type: ignore[union-attr]
        plain.step()
    for own, expected in zip(parallel.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)


def store_of_all() -> dist.Store:
    """A new one, which rank 0 serves."""
    port = [0]
    if rank() == 0:
        store = dist.TCPStore("127.0.0.1", 0, size(), is_master=True, wait_for_workers=False)
        port = [store.port]
    dist.broadcast_object_list(port, src=0)
    return store if rank() == 0 else dist.TCPStore("127.0.0.1", port[0], size())


def made_again_with_fewer_ranks(store: dist.Store, own: int, ranks: int) -> None:
    """On one store, as an elastic job does."""
    for count in (ranks, max(ranks - 1, 1), ranks):
        if own < count:
            dist.init_process_group("mydist", store=store, rank=own, world_size=count)
            dist.barrier()
            dist.destroy_process_group()
    store.add("left", 1)
    while own == 0 and store.add("left", 0) < ranks:
        time.sleep(0.01)
