"""Training on a GPU: one rank as plain torch, two ranks that share the GPU as one with all data."""

from __future__ import annotations

import pytest
import torch

import mydist as md
from mydist import _C

STEPS = 6


def make_model(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(7)
    layers = (torch.nn.Linear(20, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5))
    return torch.nn.Sequential(*layers).to(device)


def batch_of(step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step)
    inputs = torch.randn(16, 20, generator=random)
    targets = torch.randn(16, 5, generator=random)
    return inputs.to(device), targets.to(device)


def losses_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module, part: slice) -> list[float]:
    """Of each step, on that part of each batch."""
    device = next(model.parameters()).device
    losses = []
    for step in range(STEPS):
        inputs, targets = batch_of(step, device)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[part]), targets[part])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def plain_losses(device: torch.device) -> list[float]:
    model = make_model(device)
    return losses_of(torch.optim.SGD(model.parameters(), lr=0.1), model, slice(None))


def gradient_of(weight: torch.nn.Parameter) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


class RowModel(torch.nn.Module):
    """Looks rows up in a table, by the signs of its inputs."""

    def __init__(self, is_sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.table = torch.nn.Embedding(16, 6, sparse=is_sparse)
        self.last = torch.nn.Linear(6, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        powers = torch.tensor([1, 2, 4, 8], device=inputs.device)
        rows = ((inputs[:, :4] > 0) * powers).sum(1)
        result: torch.Tensor = self.last(self.table(rows))
        return result


def test_a_rank_alone_trains_sparse_gradients_as_plain_torch_dense_ones(job: torch.device) -> None:
    """A rank alone reduces nothing, but Adam takes no sparse gradients."""
    model, plain = RowModel(is_sparse=True).to(job), RowModel(is_sparse=False).to(job)
    optimizer = md.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.1), sparse_as_dense=True
    )
    expected = losses_of(torch.optim.Adam(plain.parameters(), lr=0.1), plain, slice(None))
    assert losses_of(optimizer, model, slice(None)) == pytest.approx(expected, rel=1e-5)
    assert model.table.weight.grad is not None and model.table.weight.grad.device == job


@pytest.mark.usefixtures("cuda")
def test_new_gradients_are_copied_in_the_first_step_only(job: torch.device) -> None:
    """Later they are reduced where autograd put them: a rank alone triples each, once."""
    model, plain = make_model(job), make_model(job)
    reducer = _C.GradientReducer(int(md.Sum), 3.0, 1.0, 0, 1, 0)
    for name, weight in model.named_parameters():
        reducer.add_parameter(weight, name, "", 0)
    size = sum(weight.nbytes for weight in model.parameters())
    for step in range(STEPS):
        inputs, targets = batch_of(step, job)
        for one in (model, plain):
            one.zero_grad(set_to_none=True)
            torch.nn.functional.mse_loss(one(inputs), targets).backward()
        places = [gradient_of(weight).data_ptr() for weight in model.parameters()]
        reducer.synchronize()
        assert (reducer.copied_bytes(), reducer.slot_bytes()) == (size, 0 if step else size)
        for weight, place, other in zip(
            model.parameters(), places, plain.parameters(), strict=True
        ):
            assert (gradient_of(weight).data_ptr() == place) == (step > 0)
            torch.testing.assert_close(gradient_of(weight), 3 * gradient_of(other))
    reducer.remove()


def train_on_two_ranks(device: str, buffer_views: bool) -> tuple[list[float], list[torch.Tensor]]:
    """On the half of each batch that is this rank's; losses, and the parameters at the end."""
    md.init()
    model = make_model(torch.device(device))
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        gradient_as_buffer_view=buffer_views,
    )
    half = slice(8 * md.rank(), 8 * md.rank() + 8)
    losses = losses_of(optimizer, model, half)
    parameters = [parameter.detach().cpu() for parameter in model.parameters()]
    md.shutdown()
    return losses, parameters


@pytest.mark.parametrize("buffer_views", [True, False])
def test_two_ranks_train_as_one_with_all_data(
    gpu: torch.device, buffer_views: bool, tests_on_path: None
) -> None:
    results = md.run(train_on_two_ranks, [str(gpu), buffer_views], num_proc=2)
    means = [sum(pair) / 2 for pair in zip(*(losses for losses, _ in results), strict=True)]
    assert means == pytest.approx(plain_losses(gpu), rel=1e-5)
    for one, other in zip(*(parameters for _, parameters in results), strict=True):
        assert torch.equal(one, other)


def train_with_a_strategy(device: str) -> tuple[list[float], list[torch.Tensor], list[float]]:
    """A round after each step; losses, parameters, and buffers on the GPU at the end."""
    md.init()
    model = make_model(torch.device(device))
    mean = torch.tensor([1.0 + md.rank()], device=device)
    count = torch.tensor([5 + md.rank()], device=device)
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        named_buffers=[("mean", mean), ("count", count)],
        communication=md.BlockMomentum(every=1, momentum=0.0),
    )
    losses = losses_of(optimizer, model, slice(8 * md.rank(), 8 * md.rank() + 8))
    optimizer.finish()
    parameters = [parameter.detach().cpu() for parameter in model.parameters()]
    md.shutdown()
    return losses, parameters, [float(mean), float(count)]


def test_two_ranks_that_average_parameters_train_as_one_with_all_data(
    gpu: torch.device, tests_on_path: None
) -> None:
    results = md.run(train_with_a_strategy, [str(gpu)], num_proc=2)
    means = [sum(pair) / 2 for pair in zip(*(losses for losses, _, _ in results), strict=True)]
    assert means == pytest.approx(plain_losses(gpu), rel=1e-5)
    for one, other in zip(*(parameters for _, parameters, _ in results), strict=True):
        assert torch.equal(one, other)
    assert [buffers for _, _, buffers in results] == [[1.5, 5.0]] * 2


def state_after_resuming(device: str) -> list[tuple[str, torch.Tensor]]:
    """Only rank 0 has trained before; the devices and values of every rank's state."""
    md.init()
    model = make_model(torch.device(device))
    optimizer = torch.optim.Adam(model.parameters())
    if md.rank() == 0:
        losses_of(optimizer, model, slice(None))
    md.broadcast_optimizer_state(optimizer, 0)
    state = [
        (value.device.type, value.cpu())
        for parameter in model.parameters()
        for value in optimizer.state[parameter].values()
    ]
    md.shutdown()
    return state


def test_a_rank_without_state_gets_that_of_the_root_on_its_gpu(
    gpu: torch.device, tests_on_path: None
) -> None:
    of_root, of_other = md.run(state_after_resuming, [str(gpu)], num_proc=2)
    assert {device for device, _ in of_root} == {"cpu", gpu.type}  # Adam counts on the CPU.
    for (device, value), (other_device, other_value) in zip(of_root, of_other, strict=True):
        assert device == other_device
        assert torch.equal(value, other_value)
