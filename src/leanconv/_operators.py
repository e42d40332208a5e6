"""Three operators of torch: conv_forward, conv_grad_input, conv_grad_weight, for 1 to 3 dimensions.

Each is opaque to torch.compile: the backend is chosen inside. Schema, fake kernel, autograd and
autocast are written here once, whatever the number of backends. functional.py has checked the
arguments. The derivatives of each are the other two, so any order of differentiation is served.
Layout: channels_last where the input or the weight is (and not contiguous at the same time), else
contiguous, as ATen does on a CPU. A weight's gradient is contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanconv import dispatch
from leanconv.backends.call import memory_format

_GEOMETRY = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str backend"
_library: Any = torch.library.Library("leanconv", "DEF")
_library.define(
    f"conv_forward(Tensor input, Tensor weight, Tensor? bias, {_GEOMETRY}) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "conv_grad_input(Tensor grad_output, Tensor weight, SymInt[] input_size, bool channels_last, "
    f"{_GEOMETRY}) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "conv_grad_weight(Tensor grad_output, Tensor input, SymInt[] weight_size, bool channels_last, "
    f"bool with_bias, {_GEOMETRY}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
conv_forward = torch.ops.leanconv.conv_forward.default
conv_grad_input = torch.ops.leanconv.conv_grad_input.default
conv_grad_weight = torch.ops.leanconv.conv_grad_weight.default


def is_channels_last(input: Tensor, weight: Tensor) -> bool:
    """Whether the result of a convolution is to be channels_last."""
    if input.dim() == 3:
        return False
    layout = torch.channels_last if input.dim() == 4 else torch.channels_last_3d
    if input.is_contiguous():
        return not weight.is_contiguous() and weight.is_contiguous(memory_format=layout)
    return input.is_contiguous(memory_format=layout) or (
        not weight.is_contiguous() and weight.is_contiguous(memory_format=layout)
    )


# What runs.


def _forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    backend: str,
) -> Tensor:
    layout = is_channels_last(input, weight)
    shape = (input.shape, weight.shape, stride, padding, dilation, groups)
    run = dispatch.plan("forward", *shape, input.dtype, input.device, layout, backend)
    result: Tensor = run(input, weight, bias)
    return result


def _grad_input(
    grad_output: Tensor,
    weight: Tensor,
    input_size: list[int],
    channels_last: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    backend: str,
) -> Tensor:
    shape = (tuple(input_size), weight.shape, stride, padding, dilation, groups)
    kind = (grad_output.dtype, grad_output.device, channels_last, backend)
    result: Tensor = dispatch.plan("grad_input", *shape, *kind)(grad_output, weight)
    return result


def _grad_weight(
    grad_output: Tensor,
    input: Tensor,
    weight_size: list[int],
    channels_last: bool,
    with_bias: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    shape = (input.shape, tuple(weight_size), stride, padding, dilation, groups)
    kind = (input.dtype, input.device, channels_last, backend)
    run = dispatch.plan("grad_weight", *shape, *kind)
    weight, bias = run(grad_output, input, with_bias)
    return weight, input.new_empty(0) if bias is None else bias


# What torch.compile sees: shapes and layouts only.


def _fake_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    backend: str,
) -> Tensor:
    spatial = [
        (input.shape[d + 2] + 2 * padding[d] - dilation[d] * (weight.shape[d + 2] - 1) - 1)
        // stride[d]
        + 1
        for d in range(len(stride))
    ]
    size = [input.shape[0], weight.shape[0], *spatial]
    layout = memory_format(len(stride), is_channels_last(input, weight))
    return torch.empty(size, dtype=input.dtype, device=input.device, memory_format=layout)


def _fake_grad_input(
    grad_output: Tensor,
    weight: Tensor,
    input_size: list[int],
    channels_last: bool,
    stride: list[int],
    *rest: Any,
) -> Tensor:
    kind: dict[str, Any] = {"dtype": grad_output.dtype, "device": grad_output.device}
    return torch.empty(input_size, **kind, memory_format=memory_format(len(stride), channels_last))


def _fake_grad_weight(
    grad_output: Tensor,
    input: Tensor,
    weight_size: list[int],
    channels_last: bool,
    with_bias: bool,
    *geometry: Any,
) -> tuple[Tensor, Tensor]:
    return input.new_empty(weight_size), input.new_empty(weight_size[0] if with_bias else 0)


# Derivatives: each saves only what the gradients asked for will read.


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, weight, _, *ctx.geometry = inputs
    needs_input, needs_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
    ctx.save_for_backward(input if needs_weight else None, weight if needs_input else None)
    ctx.input_size, ctx.weight_size = input.shape, weight.shape
    ctx.channels_last = is_channels_last(input, weight)


def _backward_forward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    input, weight = ctx.saved_tensors
    needs_input, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    grad_input = grad_weight = grad_bias = None
    if needs_input:
        grad_input = conv_grad_input(grad, weight, ctx.input_size, ctx.channels_last, *ctx.geometry)
    if needs_weight:
        grad_weight, grad_bias = conv_grad_weight(
            grad, input, ctx.weight_size, ctx.channels_last, needs_bias, *ctx.geometry
        )
    elif needs_bias:
        # Summed in float32 and rounded once; an fp64 gradient keeps its own type.
        wide = torch.promote_types(grad.dtype, torch.float32)
        grad_bias = grad.sum([0, *range(2, grad.dim())], dtype=wide).to(grad.dtype)
    return (grad_input, grad_weight, grad_bias if needs_bias else None, *[None] * 5)


def _save_grad_input(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad_output, weight, _, ctx.channels_last, *ctx.geometry = inputs
    ctx.save_for_backward(
        grad_output if ctx.needs_input_grad[1] else None,
        weight if ctx.needs_input_grad[0] else None,
    )
    ctx.weight_size = weight.shape


def _backward_grad_input(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grad_output, weight = ctx.saved_tensors
    to_grad_output = to_weight = None
    if ctx.needs_input_grad[0]:
        to_grad_output = conv_forward(grad, weight, None, *ctx.geometry)
    if ctx.needs_input_grad[1]:
        to_weight, _ = conv_grad_weight(
            grad_output, grad, ctx.weight_size, ctx.channels_last, False, *ctx.geometry
        )
    return (to_grad_output, to_weight, *[None] * 7)


def _save_grad_weight(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    grad_output, input, _, ctx.channels_last, ctx.with_bias, *ctx.geometry = inputs
    ctx.save_for_backward(
        grad_output if ctx.needs_input_grad[1] else None,
        input if ctx.needs_input_grad[0] else None,
    )
    ctx.input_size = input.shape


def _backward_grad_weight(ctx: Any, grad_weight: Tensor, grad_bias: Tensor) -> tuple[Any, ...]:
    grad_output, input = ctx.saved_tensors
    to_grad_output = to_input = None
    if ctx.needs_input_grad[0]:
        bias = grad_bias if ctx.with_bias else None
        to_grad_output = conv_forward(input, grad_weight, bias, *ctx.geometry)
    if ctx.needs_input_grad[1]:
        to_input = conv_grad_input(
            grad_output, grad_weight, ctx.input_size, ctx.channels_last, *ctx.geometry
        )
    return (to_grad_output, to_input, *[None] * 8)


# Autocast runs convolutions in its lower precision, as it does torch's own.


def _register_autocast(key: str, device: str) -> None:
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def autocast(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(device)

        def cast(tensor: Tensor) -> Tensor:
            eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
            return tensor.to(dtype) if eligible else tensor

        with torch._C._ExcludeDispatchKeyGuard(excluded):
            lower_bias = None if bias is None else cast(bias)
            result: Tensor = conv_forward(cast(input), cast(weight), lower_bias, *geometry)
            return result

    _library.impl("conv_forward", autocast, key)


_library.impl("conv_forward", _forward, "CompositeExplicitAutograd")
_library.impl("conv_grad_input", _grad_input, "CompositeExplicitAutograd")
_library.impl("conv_grad_weight", _grad_weight, "CompositeExplicitAutograd")
for _name, _fake in (
    ("conv_forward", _fake_forward),
    ("conv_grad_input", _fake_grad_input),
    ("conv_grad_weight", _fake_grad_weight),
):
    torch.library.register_fake(f"leanconv::{_name}", _fake, lib=_library)
for _name, _backward, _save in (
    ("conv_forward", _backward_forward, _save_forward),
    ("conv_grad_input", _backward_grad_input, _save_grad_input),
    ("conv_grad_weight", _backward_grad_weight, _save_grad_weight),
):
    torch.library.register_autograd(
        f"leanconv::{_name}", _backward, setup_context=_save, lib=_library
    )
_register_autocast("AutocastCPU", "cpu")
_register_autocast("AutocastCUDA", "cuda")
