"""Convolutions with torch.nn.functional's signatures: checks, then one operator call.

Rules: what the operators do not take (other dtypes and devices, subclasses, function transforms)
and everything invalid is handed to torch.nn.functional unchanged, which serves it or raises its own
error. So every error is the very one that torch raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from leanconv import dispatch
from leanconv._operators import conv_forward, is_channels_last

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PLAIN = (Tensor, torch.nn.Parameter)
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
    geometry = None
    if _is_ours(input, weight, bias):
        geometry = _geometry(spatial_dims, input, weight, bias, stride, padding, dilation, groups)
    if geometry is None:
        if backend and backend != "aten":
            raise ValueError(
                f"`backend` (={backend!r}) takes valid calls of plain dense CPU tensors, float32, "
                f"bfloat16 or float16, outside function transforms; "
                f"`input` is {_described(input)}, `weight` {_described(weight)}."
            )
        return stock(input, weight, bias, stride, padding, dilation, groups)
    steps, zeros, extra, spacing = geometry
    batched = input.dim() == spatial_dims + 2
    # In a trace the operator is the one node; outside, where no direction would leave ATen, the
    # operator would only cost its 30 microseconds.
    if batched and not torch.compiler.is_compiling() and input.dtype == weight.dtype:
        layout = is_channels_last(input, weight)
        differentiated = torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)
        kind = (input.dtype, layout, backend, differentiated)
        shape = (input.shape, weight.shape, steps, zeros, spacing, groups)
        if dispatch.is_stock(*shape, *kind):
            return stock(input, weight, bias, stride, padding, dilation, groups)
    if not batched:
        input = input.unsqueeze(0)
    if extra is not None:
        input = F.pad(input, extra)
    result: Tensor = conv_forward(input, weight, bias, steps, zeros, spacing, groups, backend)
    return result if batched else result.squeeze(0)


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{type(value).__name__}{tuple(value.shape)} of {value.dtype} on {value.device.type}"


def _is_ours(input: Any, weight: Any, bias: Any) -> bool:
    if type(input) not in _PLAIN or type(weight) not in _PLAIN:
        return False
    if bias is not None and type(bias) not in _PLAIN:
        return False
    if not (input.is_cpu and weight.is_cpu and (bias is None or bias.is_cpu)):
        return False
    if input.layout is not torch.strided or weight.layout is not torch.strided:
        return False
    if not (
        input.dtype in _DTYPES
        and weight.dtype in _DTYPES
        and (bias is None or bias.dtype in _DTYPES)
    ):
        return False
    alike = input.dtype == weight.dtype and (bias is None or bias.dtype == input.dtype)
    if not alike and not torch.is_autocast_enabled("cpu"):
        return False
    if torch.compiler.is_compiling():
        return True
    # Function transforms and forward-mode derivatives know torch's operator, not ours.
    return (
        torch._C._functorch.maybe_current_level() is None
        and forward_ad._current_level < 0
        and not torch._C._get_tracing_state()
    )


def _ints(value: Any, count: int) -> list[int] | None:
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return [value] * count  # type: ignore[list-item]
    if isinstance(value, (tuple, list)) and all(type(v) is int for v in value):
        if len(value) == count:
            return list(value)
        if len(value) == 1:
            return list(value) * count
    return None


def _geometry(
    spatial_dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> tuple[list[int], list[int], list[int] | None, list[int]] | None:
    """Stride, padding, what to pad beforehand, dilation; None for what torch is to judge."""
    steps, spacing = _ints(stride, spatial_dims), _ints(dilation, spatial_dims)
    if steps is None or spacing is None or type(groups) is not int or groups < 1:
        return None
    if weight.dim() != spatial_dims + 2 or input.dim() not in (spatial_dims + 1, spatial_dims + 2):
        return None
    if min(steps) < 1 or min(spacing) < 1:
        return None
    size, kernel = input.shape[-spatial_dims:], weight.shape[2:]
    channels_in, channels_out = input.shape[-spatial_dims - 1], weight.shape[0]
    if channels_out == 0 or channels_out % groups or weight.shape[1] * groups != channels_in:
        return None
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != channels_out):
        return None
    extra = None
    if isinstance(padding, str):
        if padding == "valid":
            zeros = [0] * spatial_dims
        elif padding == "same" and max(steps) == 1:
            total = [spacing[d] * (kernel[d] - 1) for d in range(spatial_dims)]
            zeros = [t // 2 for t in total]
            if any(t % 2 for t in total):
                # As torch does: the odd zero goes after the last element.
                extra = [v for t in reversed(total) for v in (0, t % 2)]
        else:
            return None
    else:
        given = _ints(padding, spatial_dims)
        if given is None or min(given) < 0:
            return None
        zeros = given
    for d in range(spatial_dims):
        more = extra[2 * (spatial_dims - 1 - d) + 1] if extra is not None else 0
        if (
            kernel[d] < 1
            or size[d] < 1
            or size[d] + 2 * zeros[d] + more < spacing[d] * (kernel[d] - 1) + 1
        ):
            return None
    return steps, zeros, extra, spacing
