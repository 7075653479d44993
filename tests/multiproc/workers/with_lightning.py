"""Lightning trains on images of digits. Arguments: a backend, a folder."""

from __future__ import annotations

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from multiproc.library_runs import BACKEND, FOLDER, digits, leave, make_model
from torch.nn import functional
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        images, labels = batch
        self.accuracy(self.model(images), labels)
        self.log("accuracy", self.accuracy)  # Of the images of all ranks.

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


lightning.seed_everything(1)
train, test = digits()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend=BACKEND, find_unused_parameters=True),
    max_epochs=3,
    gradient_clip_val=2.0,
    default_root_dir=FOLDER,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
module = Digits()
trainer.fit(module, DataLoader(train, 32, shuffle=True), DataLoader(test, 32))
leave(module.model, trainer.callback_metrics["accuracy"].item())
