"""A training script as it is written for Horovod; only the import line is another one.

    mydistrun -np 2 python examples/horovod_script.py --epochs 1 --train-images 12000

It trains a CNN on Fashion-MNIST the way Horovod's users do by hand what mydist has shorter words
for; examples/train_fashion_mnist.py is the same with those.
"""

import argparse
import hashlib
from pathlib import Path

import torch
from fashion_mnist import DATA, load
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import mydist as hvd  # It was: import horovod.torch as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the four IDX files")
    parser.add_argument("--train-images", type=int, default=None, help="use only the first N")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches-per-allreduce", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--base-lr", type=float, default=0.01, help="learning rate of one rank")
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--clip", type=float, default=None, help="largest norm of the gradients")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--use-adasum", action="store_true")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    parser.add_argument("--save", type=Path, default=None, help="file for the trained model")
    return parser.parse_args()


class Net(nn.Module):
    """Two convolutions, dropout, two linear layers: [N, 1, 28, 28] → logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, kernel_size=5)
        self.conv2 = nn.Conv2d(12, 24, kernel_size=5)
        self.dropout = nn.Dropout(0.2)
        self.fc1 = nn.Linear(24 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.conv2(x), 2))
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc2(self.dropout(x))


def metric_average(value: float, name: str) -> float:
    """The mean over all ranks."""
    return hvd.allreduce(torch.tensor(value), name=name).item()


def adjust_learning_rate(optimizer, progress: float, arguments: argparse.Namespace) -> None:
    """From the rate of one rank to that of all of them during the warm-up; `progress` in epochs."""
    # Adasum needs no larger rate for more ranks.
    scale = 1 if arguments.use_adasum else hvd.size()
    scale *= arguments.batches_per_allreduce
    if progress < arguments.warmup_epochs:
        scale = 1 + (scale - 1) * progress / arguments.warmup_epochs
    for group in optimizer.param_groups:
        group["lr"] = arguments.base_lr * scale


def train(epoch, model, optimizer, loader, sampler, arguments) -> None:
    model.train()
    sampler.set_epoch(epoch)
    for index, (images, labels) in enumerate(loader):
        adjust_learning_rate(optimizer, epoch + index / len(loader), arguments)
        if arguments.cuda:
            images, labels = images.cuda(), labels.cuda()
        optimizer.zero_grad()
        for start in range(0, len(images), arguments.batch_size):
            part = slice(start, start + arguments.batch_size)
            loss = functional.cross_entropy(model(images[part]), labels[part])
            (loss * len(labels[part]) / len(labels)).backward()
        if arguments.clip is None:
            optimizer.step()
        else:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), arguments.clip)
            with optimizer.skip_synchronize():
                optimizer.step()
        if index % 20 == 0 and hvd.rank() == 0:
            print(f"epoch {epoch} [{index}/{len(loader)}] loss {loss.item():.4f}")


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader, cuda: bool) -> tuple[float, float]:
    """Loss and accuracy over the test images of all ranks."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for images, labels in loader:
        if cuda:
            images, labels = images.cuda(), labels.cuda()
        logits = model(images)
        loss += functional.cross_entropy(logits, labels, reduction="sum").item()
        right += int((logits.argmax(dim=1) == labels).sum())
        count += len(labels)
    return metric_average(loss / count, "avg_loss"), metric_average(right / count, "avg_accuracy")


def make_loaders(
    arguments: argparse.Namespace,
) -> tuple[DataLoader, DistributedSampler, DataLoader]:
    images, labels = load(arguments.data, "train")
    count = arguments.train_images or len(labels)
    train_data = TensorDataset(images[:count], labels[:count])
    sampler = DistributedSampler(train_data, num_replicas=hvd.size(), rank=hvd.rank())
    batch_size = arguments.batch_size * arguments.batches_per_allreduce
    loader = DataLoader(train_data, batch_size=batch_size, sampler=sampler)
    test_data = TensorDataset(*load(arguments.data, "t10k"))
    test_sampler = DistributedSampler(
        test_data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
    )
    return loader, sampler, DataLoader(test_data, batch_size=1000, sampler=test_sampler)


def checksum(model: nn.Module) -> str:
    """Tells parameters apart that differ in one bit."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    torch.manual_seed(arguments.seed + hvd.rank())
    arguments.cuda = not arguments.no_cuda and torch.cuda.is_available()
    if arguments.cuda:
        torch.cuda.set_device(hvd.local_rank())  # One GPU per process.
    loader, sampler, test_loader = make_loaders(arguments)
    model = Net()
    if arguments.cuda:
        model.cuda()

    optimizer = torch.optim.SGD(
        model.parameters(), lr=arguments.base_lr, momentum=arguments.momentum
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=arguments.batches_per_allreduce,
        op=hvd.Adasum if arguments.use_adasum else hvd.Average,
        gradient_predivide_factor=arguments.gradient_predivide_factor,
    )

    for epoch in range(arguments.epochs):
        train(epoch, model, optimizer, loader, sampler, arguments)
        loss, accuracy = test(model, test_loader, arguments.cuda)
        if hvd.rank() == 0:
            print(f"test set: average loss {loss:.4f}, accuracy {accuracy:.4f}")
    if arguments.save is not None and hvd.rank() == 0:
        torch.save(model.state_dict(), arguments.save)
    print(f"rank {hvd.rank()}: parameters {checksum(model)}")


if __name__ == "__main__":
    main()
