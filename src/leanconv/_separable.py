"""Depthwise-separable convolutions as one operator: `separable_conv1d/2d/3d`.

Two operators of torch, separable_forward and separable_backward. Rules: the forward saves its input
and the weights, nothing else; the backward makes the intermediate again. A second derivative is
that of the two halves, composed. What the operators do not take (subclasses, function transforms)
is composed of torch's own convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanconv import dispatch
from leanconv._checks import described, geometry, is_ours
from leanconv._operators import conv_forward, is_channels_last
from leanconv.backends.call import memory_format
from leanconv.backends.separable.activation import NAMES, activate

IntOrInts = int | Sequence[int]
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_STOCK: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def separable_conv1d(
    input: Tensor,
    depthwise_weight: Tensor,
    pointwise_weight: Tensor,
    depthwise_bias: Tensor | None = None,
    pointwise_bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    activation: str | None = None,
    *,
    backend: str = "",
) -> Tensor:
    """A depthwise convolution, an activation and a pointwise convolution, as one operator.

    The tensor between the two is neither written to memory nor saved for the backward, which makes
    it again from `input`, at the cost of the depthwise arithmetic.

    Args:
        input: `(N, C_in, L)` or `(C_in, L)`.
        depthwise_weight: `(C_in * multiplier, 1, K)`.
        pointwise_weight: `(C_out, C_in * multiplier, 1)`.
        depthwise_bias: `(C_in * multiplier,)` or None.
        pointwise_bias: `(C_out,)` or None.
        stride: steps of the depthwise window.
        padding: zeros on both sides, or "valid" or "same".
        dilation: distance between the depthwise taps.
        activation: between the two: None, "relu", "relu6", "silu", "gelu" or "hardswish".
        backend: pins "fused", "two_step", "native_aten" or "aten"; empty leaves it to dispatch.

    Returns:
        `(N, C_out, L_out)`, or without N where the input has none.

    Raises:
        ValueError: for shapes that do not fit together, an unknown activation, or a pinned backend
            that cannot serve the call.
        RuntimeError: torch's own, for other arguments of the depthwise half.

    >>> x, depthwise, pointwise = torch.ones(1, 8, 16), torch.ones(8, 1, 3), torch.ones(4, 8, 1)
    >>> separable_conv1d(x, depthwise, pointwise, padding="same").shape
    torch.Size([1, 4, 16])
    """
    tensors = (input, depthwise_weight, depthwise_bias, pointwise_weight, pointwise_bias)
    return _separable(1, tensors, stride, padding, dilation, activation, backend)


def separable_conv2d(
    input: Tensor,
    depthwise_weight: Tensor,
    pointwise_weight: Tensor,
    depthwise_bias: Tensor | None = None,
    pointwise_bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    activation: str | None = None,
    *,
    backend: str = "",
) -> Tensor:
    """As `separable_conv1d`, of images `(N, C_in, H, W)`.

    >>> x, pointwise = torch.ones(1, 8, 16, 16), torch.ones(4, 8, 1, 1)
    >>> separable_conv2d(x, torch.ones(8, 1, 3, 3), pointwise, stride=2, activation="relu").shape
    torch.Size([1, 4, 7, 7])
    """
    tensors = (input, depthwise_weight, depthwise_bias, pointwise_weight, pointwise_bias)
    return _separable(2, tensors, stride, padding, dilation, activation, backend)


def separable_conv3d(
    input: Tensor,
    depthwise_weight: Tensor,
    pointwise_weight: Tensor,
    depthwise_bias: Tensor | None = None,
    pointwise_bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    activation: str | None = None,
    *,
    backend: str = "",
) -> Tensor:
    """As `separable_conv1d`, of volumes `(N, C_in, D, H, W)`.

    >>> x, pointwise = torch.ones(1, 8, 4, 4, 4), torch.ones(4, 8, 1, 1, 1)
    >>> separable_conv3d(x, torch.ones(16, 1, 3, 3, 3), torch.ones(4, 16, 1, 1, 1)).shape
    torch.Size([1, 4, 2, 2, 2])
    """
    tensors = (input, depthwise_weight, depthwise_bias, pointwise_weight, pointwise_bias)
    return _separable(3, tensors, stride, padding, dilation, activation, backend)


Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None]


def _separable(
    spatial_dims: int,
    tensors: Tensors,
    stride: IntOrInts,
    padding: IntOrInts | str,
    dilation: IntOrInts,
    activation: str | None,
    backend: str,
) -> Tensor:
    activation = activation or ""
    _check(spatial_dims, tensors, activation)
    input, weight, bias, pointwise_weight, pointwise_bias = tensors
    channels = input.shape[-spatial_dims - 1]
    shape = None
    if is_ours(tensors, input.device.type, _DTYPES):
        shape = geometry(
            spatial_dims, input, weight, bias, stride, padding, dilation, groups=channels
        )
    if shape is None:
        if backend and backend != "aten":
            raise ValueError(
                f"`backend` (={backend!r}) takes valid calls of plain dense tensors of one "
                f"floating-point dtype, outside function transforms; `input` is {described(input)}."
            )
        conv = _STOCK[spatial_dims]
        middle = conv(input, weight, bias, stride, padding, dilation, channels)
        return conv(activate(activation, middle), pointwise_weight, pointwise_bias)
    steps, zeros, extra, spacing = shape
    batched = input.dim() == spatial_dims + 2
    if not batched:
        input = input.unsqueeze(0)
    if extra is not None:
        input = F.pad(input, extra)
    rest = (weight, bias, pointwise_weight, pointwise_bias)
    result: Tensor = separable_forward(input, *rest, steps, zeros, spacing, activation, backend)
    return result if batched else result.squeeze(0)


def _check(spatial_dims: int, tensors: Tensors, activation: str) -> None:
    input, weight, bias, pointwise_weight, pointwise_bias = tensors
    if activation not in NAMES:
        known = ", ".join(repr(name) for name in NAMES if name)
        raise ValueError(f"`activation` (={activation!r}) must be None or one of {known}.")
    if input.dim() not in (spatial_dims + 1, spatial_dims + 2):
        raise ValueError(
            f"`input` has shape {tuple(input.shape)}; it must have {spatial_dims + 1} or "
            f"{spatial_dims + 2} dimensions."
        )
    channels = input.shape[-spatial_dims - 1]
    if (
        weight.dim() != spatial_dims + 2
        or weight.shape[1] != 1
        or channels == 0
        or weight.shape[0] == 0
        or weight.shape[0] % channels
    ):
        raise ValueError(
            f"`depthwise_weight` has shape {tuple(weight.shape)}; for `input` of {channels} "
            f"channels it must be (a multiple of {channels}, 1) and {spatial_dims} kernel sizes."
        )
    middle = weight.shape[0]
    expected = (middle, *[1] * spatial_dims)
    if tuple(pointwise_weight.shape[1:]) != expected or pointwise_weight.shape[0] == 0:
        raise ValueError(
            f"`pointwise_weight` has shape {tuple(pointwise_weight.shape)}; after "
            f"`depthwise_weight` of {middle} channels it must be (C_out, "
            f"{', '.join(map(str, expected))})."
        )
    for name, given, size in (
        ("depthwise_bias", bias, middle),
        ("pointwise_bias", pointwise_bias, pointwise_weight.shape[0]),
    ):
        if given is not None and tuple(given.shape) != (size,):
            raise ValueError(f"`{name}` has shape {tuple(given.shape)}; it must be ({size},).")


_GEOMETRY = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, str activation, str backend"
_library: Any = torch.library.Library("leanconv", "FRAGMENT")
_library.define(
    "separable_forward(Tensor input, Tensor depthwise_weight, Tensor? depthwise_bias, "
    f"Tensor pointwise_weight, Tensor? pointwise_bias, {_GEOMETRY}) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "separable_backward(Tensor grad_output, Tensor input, Tensor depthwise_weight, "
    "Tensor? depthwise_bias, Tensor pointwise_weight, bool[] wanted, "
    f"{_GEOMETRY}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
separable_forward = torch.ops.leanconv.separable_forward.default
separable_backward = torch.ops.leanconv.separable_backward.default


def _plan(direction: Any, input: Tensor, weight: Tensor, channels_out: int, *rest: Any) -> Any:
    stride, padding, dilation, activation, backend = rest
    shape = (input.shape, weight.shape, channels_out, stride, padding, dilation, activation)
    kind = (input.dtype, input.device, is_channels_last(input, weight), backend)
    return dispatch.plan_separable(direction, *shape, *kind)


def _forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pointwise_weight: Tensor,
    pointwise_bias: Tensor | None,
    *rest: Any,
) -> Tensor:
    run = _plan("forward", input, weight, pointwise_weight.shape[0], *rest)
    result: Tensor = run(input, weight, bias, pointwise_weight, pointwise_bias)
    return result


def _backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pointwise_weight: Tensor,
    wanted: list[bool],
    *rest: Any,
) -> tuple[Tensor, ...]:
    run = _plan("backward", input, weight, pointwise_weight.shape[0], *rest)
    grads = run(grad_output, input, weight, bias, pointwise_weight, tuple(wanted))
    # An operator returns tensors only; what was not wanted is empty.
    return tuple(input.new_empty(0) if grad is None else grad for grad in grads)


# What torch.compile sees: shapes and layouts only.


def _fake_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pointwise_weight: Tensor,
    pointwise_bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    activation: str,
    backend: str,
) -> Tensor:
    spatial = [
        (input.shape[d + 2] + 2 * padding[d] - dilation[d] * (weight.shape[d + 2] - 1) - 1)
        // stride[d]
        + 1
        for d in range(len(stride))
    ]
    size = [input.shape[0], pointwise_weight.shape[0], *spatial]
    layout = memory_format(len(stride), is_channels_last(input, weight))
    return torch.empty(size, dtype=input.dtype, device=input.device, memory_format=layout)


def _fake_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pointwise_weight: Tensor,
    wanted: list[bool],
    stride: list[int],
    *rest: Any,
) -> tuple[Tensor, ...]:
    layout = memory_format(len(stride), is_channels_last(input, weight))
    kind: dict[str, Any] = {"dtype": input.dtype, "device": input.device}
    return (
        torch.empty(input.shape, **kind, memory_format=layout) if wanted[0] else input.new_empty(0),
        input.new_empty(weight.shape if wanted[1] else 0),
        input.new_empty(weight.shape[0] if wanted[2] else 0),
        input.new_empty(pointwise_weight.shape if wanted[3] else 0),
        input.new_empty(pointwise_weight.shape[0] if wanted[4] else 0),
    )


# Derivatives.


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, weight, bias, pointwise_weight, _, *ctx.rest = inputs
    ctx.save_for_backward(input, weight, bias, pointwise_weight)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:5])
    if torch.is_grad_enabled():
        grads = _composed(tensors, grad, wanted, ctx.rest)
    else:
        grads = separable_backward(grad, *tensors, wanted, *ctx.rest)
    return (*(g if wanted[i] else None for i, g in enumerate(grads)), *[None] * 5)


def _composed(
    tensors: tuple[Any, ...], grad: Tensor, wanted: list[bool], rest: Sequence[Any]
) -> list[Tensor | None]:
    """The gradients as a graph of their own, for a derivative of them."""
    input, weight, bias, pointwise_weight = tensors
    stride, padding, dilation, activation, _ = rest
    dims = len(stride)
    unit = ([1] * dims, [0] * dims, [1] * dims, 1, "")
    # The bias enters as a zero: its value changes no gradient.
    zero = grad.new_zeros(pointwise_weight.shape[0], requires_grad=True)
    middle = conv_forward(input, weight, bias, stride, padding, dilation, input.shape[1], "")
    output = conv_forward(activate(activation, middle), pointwise_weight, zero, *unit)
    inputs = [input, weight, bias, pointwise_weight, zero]
    asked = [each for each, yes in zip(inputs, wanted, strict=True) if yes]
    found = iter(torch.autograd.grad(output, asked, grad, create_graph=True))
    return [next(found) if yes else None for yes in wanted]


def _not_differentiable(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError(
        "separable_backward has no derivative of its own: ask for a second derivative with "
        "create_graph=True from the start."
    )


# Autocast runs both halves in its lower precision.


def _register_autocast(key: str, device: str) -> None:
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def autocast(*arguments: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(device)

        def cast(tensor: Tensor | None) -> Tensor | None:
            if tensor is None or tensor.dtype == torch.float64:
                return tensor
            return tensor.to(dtype)

        with torch._C._ExcludeDispatchKeyGuard(excluded):
            result: Tensor = separable_forward(*map(cast, arguments[:5]), *arguments[5:])
            return result

    _library.impl("separable_forward", autocast, key)


_library.impl("separable_forward", _forward, "CompositeExplicitAutograd")
_library.impl("separable_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("leanconv::separable_forward", _fake_forward, lib=_library)
torch.library.register_fake("leanconv::separable_backward", _fake_backward, lib=_library)
torch.library.register_autograd(
    "leanconv::separable_forward", _differentiate, setup_context=_save, lib=_library
)
torch.library.register_autograd("leanconv::separable_backward", _not_differentiable, lib=_library)
_register_autocast("AutocastCPU", "cpu")
_register_autocast("AutocastCUDA", "cuda")
