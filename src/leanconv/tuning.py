"""Measures ahead every convolution that a model runs, so that training meets only known shapes.

Layers of torch.nn are tuned too, as if they were leanconv's: it is `torch.conv1d/2d/3d` that is
watched, so a choice measured here is found once the layer is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from leanconv import dispatch, functional
from leanconv._choices import Choice

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_OURS = {
    torch.conv1d: functional.conv1d,
    torch.conv2d: functional.conv2d,
    torch.conv3d: functional.conv3d,
}


def tune(model: nn.Module, example: Any, seconds: float = 2.0) -> list[Choice]:
    """Runs one forward and backward with every unknown convolution measured and stored.

    The model's parameters, gradients and buffers are left as they were.

    Args:
        model: whose convolutions, leanconv's or torch.nn's, are to be tuned.
        example: its input, or a tuple of inputs, of the shape and dtype that training uses.
        seconds: the longest time for one direction of one shape.

    Returns:
        A record a direction and shape, with the time of every candidate.

    >>> layer = leanconv.Conv1d(8, 8, 3, groups=8)
    >>> len(leanconv.tune(layer, torch.ones(1, 8, 64, requires_grad=True)))
    3
    """
    by_layer = tune_layers(model, example, seconds)
    return list({each.key: each for found in by_layer.values() for each in found}.values())


def tune_layers(model: nn.Module, example: Any, seconds: float = 2.0) -> dict[str, list[Choice]]:
    """As `tune`; the records by layer, those of no layer under "functional".

    >>> list(tune_layers(torch.nn.Sequential(leanconv.Conv1d(8, 8, 3)), torch.ones(1, 8, 64)))
    ['0']
    """
    arguments = tuple(example) if isinstance(example, Sequence) else (example,)
    held = {name: buffer.clone() for name, buffer in model.named_buffers()}
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    watch = _Watch(model)
    try:
        with dispatch.using(mode="measure", tune_seconds=seconds), _AsOurs():
            output = model(*arguments)
            for tensor in _differentiable(output):
                torch.autograd.grad(tensor.sum(), wanted, retain_graph=True, allow_unused=True)
            watch.collect("functional")
    finally:
        watch.remove()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(held[name])
    return watch.by_layer()


class _Watch:
    """Which choices were made or looked up while which layer ran its forward."""

    def __init__(self, model: nn.Module) -> None:
        self._found: dict[str, dict[str, Choice]] = {}
        self._hooks: list[Any] = []
        for name, module in model.named_modules():
            if isinstance(module, CONVOLUTIONS):
                self._watch(name or type(module).__name__, module)

    def _watch(self, name: str, module: nn.Module) -> None:
        def before(*_: Any) -> None:
            self.collect("functional")

        def after(*_: Any) -> None:
            self.collect(name)

        self._hooks.append(module.register_forward_pre_hook(before))
        self._hooks.append(module.register_forward_hook(after))

    def collect(self, name: str) -> None:
        """Gives what was chosen since the last call to `name`. What is forgotten is on disk."""
        found = self._found.setdefault(name, {})
        found.update({choice.key: choice for choice in dispatch.chosen()})
        dispatch.forget()

    def by_layer(self) -> dict[str, list[Choice]]:
        """The records of each layer that ran."""
        layers = {
            key for name, found in self._found.items() if name != "functional" for key in found
        }
        result = {}
        for name, found in self._found.items():
            # A backward looks up what the layer's forward chose; only the rest is nobody's.
            kept = [c for k, c in found.items() if name != "functional" or k not in layers]
            if kept:
                result[name] = kept
        return result

    def remove(self) -> None:
        """Takes the hooks away."""
        for hook in self._hooks:
            hook.remove()


class _AsOurs(TorchFunctionMode):
    """Sends torch's convolutions to leanconv's; inside a call the mode is off."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _OURS.get(func, func)(*args, **(kwargs or {}))


def _differentiable(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output] if output.requires_grad else []
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return [tensor for each in output for tensor in _differentiable(each)]
    return []
