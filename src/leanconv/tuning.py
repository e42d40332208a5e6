"""Measures ahead every convolution that a model runs, so that training meets only known shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from leanconv import dispatch
from leanconv._choices import Choice


def tune(model: torch.nn.Module, example: Any, seconds: float = 2.0) -> list[Choice]:
    """Runs one forward and backward with every unknown convolution measured and stored.

    The model's parameters, gradients and buffers are left as they were.

    Args:
        model: whose `leanconv` convolutions are to be tuned.
        example: its input, or a tuple of inputs, of the shape and dtype that training uses.
        seconds: the longest time for one direction of one shape.

    Returns:
        A record a direction and shape, with the time of every candidate.

    >>> layer = leanconv.Conv1d(8, 8, 3, groups=8)
    >>> len(leanconv.tune(layer, torch.ones(1, 8, 64, requires_grad=True)))
    3
    """
    arguments = tuple(example) if isinstance(example, Sequence) else (example,)
    held = {name: buffer.clone() for name, buffer in model.named_buffers()}
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with dispatch.using(mode="measure", tune_seconds=seconds):
        output = model(*arguments)
        for tensor in _differentiable(output):
            torch.autograd.grad(tensor.sum(), wanted, retain_graph=True, allow_unused=True)
        records = dispatch.chosen()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(held[name])
    return records


def _differentiable(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output] if output.requires_grad else []
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return [tensor for each in output for tensor in _differentiable(each)]
    return []
