"""What the operators take, asked once, at the public functions.

Rules: what is not taken is None or False here, never an error: torch serves it or raises its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PLAIN = (Tensor, torch.nn.Parameter)


def described(value: Any) -> str:
    """A tensor in words."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{type(value).__name__}{tuple(value.shape)} of {value.dtype} on {value.device.type}"


def is_ours(tensors: Sequence[Any], device: str, dtypes: Sequence[torch.dtype] = DTYPES) -> bool:
    """Whether an operator of ours takes these tensors, None for those not given."""
    given = [tensor for tensor in tensors if tensor is not None]
    if any(type(tensor) not in _PLAIN for tensor in given):
        return False
    if any(t.device.type != device or t.layout is not torch.strided for t in given):
        return False
    if any(tensor.dtype not in dtypes for tensor in given):
        return False
    alike = all(tensor.dtype == given[0].dtype for tensor in given)
    if not alike and not torch.is_autocast_enabled(device):
        return False
    if torch.compiler.is_compiling():
        return True
    # Function transforms and forward-mode derivatives know torch's operator, not ours.
    return (
        torch._C._functorch.maybe_current_level() is None
        and forward_ad._current_level < 0
        and not torch._C._get_tracing_state()
    )


def ints(value: Any, count: int) -> list[int] | None:
    """One number for each dimension; None for what torch is to judge."""
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return [value] * count  # type: ignore[list-item]
    if isinstance(value, (tuple, list)) and all(type(v) is int for v in value):
        if len(value) == count:
            return list(value)
        if len(value) == 1:
            return list(value) * count
    return None


def geometry(
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
    steps, spacing = ints(stride, spatial_dims), ints(dilation, spatial_dims)
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
        given = ints(padding, spatial_dims)
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
