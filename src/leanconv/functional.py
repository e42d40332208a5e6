"""Convolutions with torch.nn.functional's signatures: checks, then one operator call.

Rules: what the operators do not take (other dtypes and devices, subclasses, function transforms)
and everything invalid is handed to torch.nn.functional unchanged, which serves it or raises its own
error. So every error is the very one that torch raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from leanconv import dispatch
from leanconv._checks import described, geometry, is_ours
from leanconv._operators import conv_forward, is_channels_last
from leanconv._separable import separable_conv1d, separable_conv2d, separable_conv3d

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "separable_conv1d",
    "separable_conv2d",
    "separable_conv3d",
]

IntOrInts = int | Sequence[int]


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    groups: int = 1,
    *,
    backend: str = "",
) -> Tensor:
    """`torch.nn.functional.conv1d` on the fastest backend.

    Args:
        input: `(N, C_in, L)` or `(C_in, L)`.
        weight: `(C_out, C_in / groups, K)`.
        bias: `(C_out,)` or None.
        stride: steps of the window.
        padding: zeros on both sides, or "valid" or "same".
        dilation: distance between taps.
        groups: blocks of channels that are convolved apart.
        backend: pins one of `leanconv.backends()`; empty leaves the choice to dispatch.

    Returns:
        `(N, C_out, L_out)`, or without N where the input has none.

    Raises:
        RuntimeError: torch's own, for arguments that do not fit together.
        ValueError: where the pinned backend cannot serve the call, with its reasons.

    >>> conv1d(torch.ones(1, 8, 16), torch.ones(8, 1, 3), groups=8).shape
    torch.Size([1, 8, 14])
    """
    return _conv(1, F.conv1d, input, weight, bias, stride, padding, dilation, groups, backend)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    groups: int = 1,
    *,
    backend: str = "",
) -> Tensor:
    """`torch.nn.functional.conv2d` on the fastest backend; arguments as in `conv1d`.

    >>> conv2d(torch.ones(1, 8, 16, 16), torch.ones(8, 1, 3, 3), groups=8, padding="same").shape
    torch.Size([1, 8, 16, 16])
    """
    return _conv(2, F.conv2d, input, weight, bias, stride, padding, dilation, groups, backend)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    groups: int = 1,
    *,
    backend: str = "",
) -> Tensor:
    """`torch.nn.functional.conv3d` on the fastest backend; arguments as in `conv1d`.

    >>> conv3d(torch.ones(1, 8, 4, 4, 4), torch.ones(8, 1, 3, 3, 3), groups=8, stride=2).shape
    torch.Size([1, 8, 1, 1, 1])
    """
    return _conv(3, F.conv3d, input, weight, bias, stride, padding, dilation, groups, backend)


def _conv(
    spatial_dims: int,
    stock: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: IntOrInts,
    padding: IntOrInts | str,
    dilation: IntOrInts,
    groups: int,
    backend: str,
) -> Tensor:
    shape = None
    if is_ours((input, weight, bias), "cpu"):
        shape = geometry(spatial_dims, input, weight, bias, stride, padding, dilation, groups)
    if shape is None:
        if backend and backend != "aten":
            raise ValueError(
                f"`backend` (={backend!r}) takes valid calls of plain dense CPU tensors, float32, "
                f"bfloat16 or float16, outside function transforms; "
                f"`input` is {described(input)}, `weight` {described(weight)}."
            )
        return stock(input, weight, bias, stride, padding, dilation, groups)
    steps, zeros, extra, spacing = shape
    batched = input.dim() == spatial_dims + 2
    # In a trace the operator is the one node; outside, where no direction would leave ATen, the
    # operator would only cost its 30 microseconds.
    if batched and not torch.compiler.is_compiling() and input.dtype == weight.dtype:
        layout = is_channels_last(input, weight)
        differentiated = torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)
        kind = (input.dtype, layout, backend, differentiated)
        sizes = (input.shape, weight.shape, steps, zeros, spacing, groups)
        if dispatch.is_stock(*sizes, *kind):
            return stock(input, weight, bias, stride, padding, dilation, groups)
    if not batched:
        input = input.unsqueeze(0)
    if extra is not None:
        input = F.pad(input, extra)
    result: Tensor = conv_forward(input, weight, bias, steps, zeros, spacing, groups, backend)
    return result if batched else result.squeeze(0)
