"""Trains a ResNet as one trains it on ImageNet, on made-up images, so that nothing is downloaded.

    mydistrun -np 2 python examples/train_imagenet.py --checkpoints runs/tiny

Learning rate, warm-up and decay are those of Goyal et al. 2017 (arXiv:1706.02677). Interrupt it
with SIGTERM, or --stop-after 10, and start it again: it goes on where it was. The default model is
tiny; the real one, with images of that size:

    mydistrun -np 8 python examples/train_imagenet.py --arch resnet50 --classes 1000 --epochs 90 \\
        --image-size 224 --train-images 1281167 --val-images 50000 --batch-size 32 --workers 4

To train on ImageNet itself put torchvision's ImageFolder in the place of SyntheticImages.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import mydist as md


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", choices=list(ARCHITECTURES), default="tiny")
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--train-images", type=int, default=2048)
    parser.add_argument("--val-images", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and backward")
    parser.add_argument("--accumulate", type=int, default=1, help="backwards per step")
    parser.add_argument("--lr", type=float, default=0.0125, help="rate for --batch-size images")
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-5)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--compression", choices=["none", "fp16", "bf16"], default="none")
    parser.add_argument("--sync-bn", action="store_true", help="batch norm over all ranks")
    parser.add_argument("--workers", type=int, default=0, help="loader processes per rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", type=Path, default=None, help="folder to resume from")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between checkpoints")
    parser.add_argument("--stop-after", type=int, default=None, help="steps; as if by SIGTERM")
    return parser.parse_args()


class SyntheticImages(Dataset):
    """Each class is a pattern of waves; an image of it is shifted and noisy.

    Items, the same in every epoch and on every rank: float32 [3, size, size] and the class.
    """

    def __init__(self, count: int, first: int, classes: int, size: int) -> None:
        self.count, self.first, self.classes, self.size = count, first, classes, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.first + index)
        label = int(torch.randint(self.classes, (), generator=generator))
        angle = torch.tensor(torch.pi * label / self.classes)
        shift = torch.rand((), generator=generator) * 2 * torch.pi
        place = torch.linspace(0, 6 * torch.pi, self.size)
        wave = torch.sin(place[:, None] * angle.cos() + place[None, :] * angle.sin() + shift)
        noise = torch.randn(3, self.size, self.size, generator=generator)
        return wave + 0.5 * noise, label


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """A convolution that keeps the size but for its stride, and batch normalization."""
    padding = kernel // 2
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return [layer, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """x + f(x): two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times the channels at the end."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * (4 if bottleneck else 1)
        if bottleneck:
            layers = [*conv(inputs, width, 1), nn.ReLU(), *conv(width, width, 3, stride), nn.ReLU()]
            layers += conv(width, outputs, 1)
        else:
            layers = [*conv(inputs, width, 3, stride), nn.ReLU(), *conv(width, width, 3)]
        nn.init.zeros_(layers[-1].weight)  # Each block begins as the identity (section 5.1).
        self.body = nn.Sequential(*layers)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.shortcut(x) + self.body(x))


# Blocks per stage, width of the first stage, whether blocks are bottlenecks (He et al. 2015).
ARCHITECTURES = {
    "tiny": ((1, 1), 8, False),
    "resnet18": ((2, 2, 2, 2), 64, False),
    "resnet50": ((3, 4, 6, 3), 64, True),
}


def make_model(arch: str, classes: int) -> nn.Module:
    """[N, 3, H, W] → logits [N, classes]."""
    stages, width, bottleneck = ARCHITECTURES[arch]
    channels = width
    layers = [*conv(3, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Residual(channels, width << stage, stride, bottleneck))
            channels = (width << stage) * (4 if bottleneck else 1)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


def make_loaders(arguments: argparse.Namespace):
    """Each rank's share. A batch holds all that one step sees."""
    sizes = (arguments.classes, arguments.image_size)
    train_data = SyntheticImages(arguments.train_images, 0, *sizes)
    train_loader = md.prepare_loader(
        train_data,
        batch_size=arguments.batch_size * arguments.accumulate,
        drop_last=True,
        num_workers=arguments.workers,
        seed=arguments.seed,
        tail="drop",
    )
    val_data = SyntheticImages(arguments.val_images, arguments.train_images, *sizes)
    val_loader = md.prepare_loader(
        val_data, batch_size=64, num_workers=arguments.workers, shuffle=False, tail="join"
    )
    return train_loader, val_loader


def make_optimizer(model: nn.Module, arguments: argparse.Namespace, steps_per_epoch: int):
    """The distributed optimizer, its warm-up and its schedule."""
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=md.scale_lr(arguments.lr, size=md.size() * arguments.accumulate),
        momentum=arguments.momentum,
        weight_decay=arguments.weight_decay,
        nesterov=True,
    )
    warmup = md.WarmupLR(optimizer, steps=int(arguments.warmup_epochs * steps_per_epoch))
    optimizer = md.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=getattr(md.Compression, arguments.compression),
        backward_passes_per_step=arguments.accumulate,
    )
    # A tenth of the rate after 1/3, 2/3 and 8/9 of the training: epochs 30, 60 and 80 of 90.
    steps = steps_per_epoch * arguments.epochs
    milestones = [steps // 3, steps * 2 // 3, steps * 8 // 9]
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    return optimizer, warmup, scheduler


def take_step(model, optimizer, images, labels, arguments) -> torch.Tensor:
    """One step on a batch, in `accumulate` backward passes; returns its mean loss."""
    optimizer.zero_grad()
    total = torch.zeros(())
    chunks = zip(
        images.split(arguments.batch_size), labels.split(arguments.batch_size), strict=True
    )
    for some_images, some_labels in chunks:
        loss = functional.cross_entropy(
            model(some_images), some_labels, label_smoothing=arguments.label_smoothing
        )
        loss = loss / arguments.accumulate
        loss.backward()  # The last one sends the gradients on their way.
        total += loss.detach()
    optimizer.step()
    return total


@torch.no_grad()
def validate(model: nn.Module, loader) -> dict[str, float]:
    """Loss and accuracy over the validation images of all ranks."""
    model.eval()
    metrics = md.Metrics("validation")
    for images, labels in loader:
        logits = model(images)
        accuracy = (logits.argmax(dim=1) == labels).float().mean()
        loss = functional.cross_entropy(logits, labels)
        metrics.update(loss=loss, accuracy=accuracy, weight=len(labels))
    return metrics.compute()


def train(model, optimizer, scheduler, loaders, checkpoint, arguments) -> None:
    """From where `checkpoint` is to the last epoch, or until the job is asked to stop."""
    train_loader, val_loader = loaders
    step = checkpoint.step if checkpoint else 0
    while (epoch := train_loader.sampler.epoch) < arguments.epochs:
        model.train()
        bar = md.progress(train_loader, f"epoch {epoch + 1}")
        for images, labels in bar:
            loss = take_step(model, optimizer, images, labels, arguments)
            scheduler.step()
            step += 1
            bar.show(loss=loss)
            if checkpoint is None:
                continue
            if step % arguments.save_every == 0:
                checkpoint.save(step)
            if step == arguments.stop_after:
                checkpoint.request_stop()
            if checkpoint.should_stop(step):  # Saved on the way.
                say(f"stopped after step {step}; start me again to go on")
                return
        result = validate(model, val_loader)
        rate = scheduler.get_last_lr()[0]
        say(
            f"epoch {epoch + 1}: step {step}, validation loss {result['loss']:.6f}, "
            f"accuracy {result['accuracy']:.4f}, next learning rate {rate:.5f}"
        )
    if checkpoint is not None:
        checkpoint.save(step)


def say(text: str) -> None:
    if md.rank() == 0:
        print(text)


def main() -> None:
    arguments = parse_arguments()
    md.init()
    # The ranks' generators differ from here on; broadcast_parameters makes the models equal.
    md.seed_everything(arguments.seed)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // md.local_size()))
    model = make_model(arguments.arch, arguments.classes)
    if arguments.sync_bn:
        model = md.convert_sync_batchnorm(model)
    loaders = make_loaders(arguments)
    optimizer, warmup, scheduler = make_optimizer(model, arguments, len(loaders[0]))
    md.broadcast_parameters(model.state_dict(), root_rank=0)

    checkpoint = None
    if arguments.checkpoints is not None:
        checkpoint = md.Checkpoint(  # Restores the newest one there is.
            arguments.checkpoints,
            keep=3,
            resume="auto",
            model=model,
            optimizer=optimizer,
            warmup=warmup,
            scheduler=scheduler,
            loader=loaders[0],
        )
        if checkpoint.step:
            say(f"resumed at step {checkpoint.step}, epoch {loaders[0].sampler.epoch + 1}")
    train(model, optimizer, scheduler, loaders, checkpoint, arguments)
    md.shutdown()


if __name__ == "__main__":
    main()
