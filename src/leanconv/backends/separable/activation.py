"""The activations between the halves, as torch's own operators."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
# In the order of the numbers of csrc/leanconv.h.
NAMES = ("", "relu", "relu6", "silu", "gelu", "hardswish")
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "gelu": F.gelu,
    "hardswish": F.hardswish,
}
_BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "": lambda grad, x: grad,
    "relu": lambda grad, x: aten.threshold_backward(grad, x, 0),
    "relu6": lambda grad, x: aten.hardtanh_backward(grad, x, 0.0, 6.0),
    "silu": lambda grad, x: aten.silu_backward(grad, x),
    "gelu": lambda grad, x: aten.gelu_backward(grad, x),
    "hardswish": lambda grad, x: aten.hardswish_backward(grad, x),
}


def activate(name: str, x: Tensor) -> Tensor:
    """The activation of that name."""
    return FUNCTIONS[name](x)


def activation_backward(name: str, grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of `x`, of which the activation was taken."""
    return _BACKWARD[name](grad, x)
