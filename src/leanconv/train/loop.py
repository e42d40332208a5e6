"""A plain training loop."""

from __future__ import annotations

import time

import torch
from torch import nn

from leanconv.measure.clock import Progress
from leanconv.profiler.report import Training
from leanconv.profiler.step import TrainingStep
from leanconv.train.data import ImageData


def train_steps(
    model: nn.Module,
    data: ImageData,
    *,
    steps: int,
    batch_size: int = 32,
    optimizer: torch.optim.Optimizer | None = None,
    name: str = "",
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Training:
    """Train `model` for some steps, in place, and say how well it does on the held-out images.

    Args:
        model: takes images `(N, 3, H, W)`, returns class scores `(N, classes)`.
        data: the images.
        steps: how many batches to train on.
        batch_size: images a batch.
        optimizer: by default Adam at a rate of 0.001.
        name: of the network in reports; by default its class's.
        seed: of the order of the images.
        on_progress: called with the finished share, 0 to 1.

    Raises:
        ValueError: if `steps` is below 1, or `batch_size` exceeds the training images.
    """
    if steps < 1:
        raise ValueError(f"`steps` (={steps}) must be at least 1")
    if not 1 <= batch_size <= len(data.train_images):
        raise ValueError(
            f"`batch_size` (={batch_size}) must be between 1 and {len(data.train_images)}, "
            "the number of training images"
        )
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    step = TrainingStep(model, data.loader(batch_size, seed=seed), optimizer=optimizer)
    model.train()
    losses = []
    start = time.perf_counter()
    for index in range(steps):
        step()
        losses.append(step.loss_value())
        if on_progress:
            on_progress((index + 1) / steps)
    seconds = time.perf_counter() - start
    return Training(
        name=name or type(model).__name__,
        losses=tuple(losses),
        seconds=seconds,
        batch_size=batch_size,
        accuracy=accuracy(model, data),
        data=data.name,
    )


def accuracy(model: nn.Module, data: ImageData) -> float:
    """The share of held-out images classified rightly, in evaluation mode; the mode is put back."""
    training = model.training
    model.eval()
    right = 0
    with torch.inference_mode():
        for images, labels in data.test_batches():
            right += int((model(images).argmax(1) == labels).sum())
    model.train(training)
    return right / len(data.test_labels)
