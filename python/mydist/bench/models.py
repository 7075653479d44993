"""Models that are trained to be measured, with their data, all made by seed; and their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

import mydist as md

_CLASSES = 10
_IMAGENET_CLASSES = 1000
_VOCABULARY = 1000
_CONTEXT = 64


@dataclass(frozen=True)
class Workload:
    """A model and one batch for it; the loss is the cross entropy of model(inputs) and labels."""

    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device) -> Workload:
        """The same there; the model is moved."""
        return Workload(self.model.to(device), self.inputs.to(device), self.labels.to(device))


def conv_net() -> nn.Module:
    """About 420,000 parameters on images of shape (1, 28, 28)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 256),
        nn.ReLU(),
        nn.Linear(256, _CLASSES),
    )


class _Residual(nn.Module):
    """Convolutions around which the input is passed (He et al., 2015).

    From (batch, before, h, w) to (batch, after, h ÷ stride, w ÷ stride).
    """

    def __init__(self, path: Iterable[nn.Module], shortcut: Iterable[nn.Module]) -> None:
        super().__init__()
        self.path, self.shortcut = nn.Sequential(*path), nn.Sequential(*shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return torch.relu(self.path(x) + self.shortcut(x))


def _normalized(convolution: nn.Conv2d) -> tuple[nn.Module, nn.Module]:
    return convolution, nn.BatchNorm2d(convolution.out_channels)


def _block(before: int, after: int, stride: int) -> _Residual:
    """Two convolutions."""
    path = (
        *_normalized(nn.Conv2d(before, after, 3, stride, 1, bias=False)),
        nn.ReLU(),
        *_normalized(nn.Conv2d(after, after, 3, 1, 1, bias=False)),
    )
    return _Residual(path, [nn.Conv2d(before, after, 1, stride, bias=False)])


def small_resnet() -> nn.Module:
    """About 2.8 million parameters on images of shape (3, 32, 32)."""
    widths = (32, 64, 128, 256)
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, 2, 1, bias=False)]
    for before, after in zip((widths[0], *widths), widths, strict=False):
        layers += [_block(before, after, 1 if before == after else 2), _block(after, after, 1)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], _CLASSES)
    )


def _bottleneck(before: int, after: int, stride: int) -> _Residual:
    """Three convolutions, the one in the middle a quarter as wide as what comes out."""
    width = after // 4
    path = (
        *_normalized(nn.Conv2d(before, width, 1, bias=False)),
        nn.ReLU(),
        *_normalized(nn.Conv2d(width, width, 3, stride, 1, bias=False)),
        nn.ReLU(),
        *_normalized(nn.Conv2d(width, after, 1, bias=False)),
    )
    if before == after:
        return _Residual(path, ())
    return _Residual(path, _normalized(nn.Conv2d(before, after, 1, stride, bias=False)))


def resnet50() -> nn.Module:
    """ResNet-50 on images of shape (3, 224, 224): 161 parameters of 25,557,032 elements.

    From its architecture (He et al., 2015, table 1); the stride is that of the 3 × 3 convolution.
    """
    layers: list[nn.Module] = [*_normalized(nn.Conv2d(3, 64, 7, 2, 3, bias=False)), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for stage, (blocks, wide) in enumerate(((3, 256), (4, 512), (6, 1024), (3, 2048))):
        for block in range(blocks):
            layers.append(_bottleneck(channels, wide, 2 if stage > 0 and block == 0 else 1))
            channels = wide
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, _IMAGENET_CLASSES)
    )


class _Gpt(nn.Module):
    """A decoder-only transformer that predicts the token after the last."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(_CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, _VOCABULARY, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(_CONTEXT))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From (batch, context) to (batch, vocabulary)."""
        x = self.tokens(tokens) + self.positions
        logits: torch.Tensor = self.head(self.layers(x, mask=self.mask, is_causal=True)[:, -1])
        return logits


def small_gpt() -> nn.Module:
    """About 2.2 million parameters on 64 tokens of a vocabulary of 1,000."""
    return _Gpt(width=192, depth=4)


def _images(channels: int, side: int) -> Callable[[int, torch.Generator], torch.Tensor]:
    return lambda batch, generator: torch.rand(batch, channels, side, side, generator=generator)


def _tokens(batch: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, _VOCABULARY, (batch, _CONTEXT), generator=generator)


_Inputs = Callable[[int, torch.Generator], torch.Tensor]
MODELS: dict[str, tuple[Callable[[], nn.Module], _Inputs, int]] = {
    "conv": (conv_net, _images(1, 28), _CLASSES),
    "resnet": (small_resnet, _images(3, 32), _CLASSES),
    "resnet50": (resnet50, _images(3, 224), _IMAGENET_CLASSES),
    "gpt": (small_gpt, _tokens, _VOCABULARY),
}


def make_workload(name: str, batch: int, rank: int) -> Workload:
    """The same parameters on every rank, other data. KeyError for an unknown name."""
    make_model, make_inputs, classes = MODELS[name]
    torch.manual_seed(0)
    model = make_model()
    generator = torch.Generator().manual_seed(rank)
    inputs = make_inputs(batch, generator)
    labels = torch.randint(0, classes, (batch,), generator=generator)
    return Workload(model, inputs, labels)


class Trainee:
    """A model in training, with SGD or, if `distributed`, with a DistributedOptimizer."""

    def __init__(self, workload: Workload, distributed: bool, momentum: float = 0.9) -> None:
        self.workload = workload
        self.model = workload.model  # What is called, with the same parameters.
        parameters = workload.model.parameters()
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            parameters, lr=0.001, momentum=momentum
        )
        if distributed:
            self.optimizer = md.DistributedOptimizer(
                self.optimizer, named_parameters=workload.model.named_parameters()
            )

    def step(self) -> torch.Tensor:
        """One training step; the loss."""
        self.optimizer.zero_grad()
        output = self.model(self.workload.inputs)
        loss = nn.functional.cross_entropy(output, self.workload.labels)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss
