"""Mean and variance of a depthwise convolution's result, without the result.

For a norm between the halves of a separable convolution: the statistics are taken first, then the
norm is folded into the depthwise weights. Two operators of torch, depthwise_statistics and its
backward. Rules: a few images at a time, whose intermediate stays in the cache; sums in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor

from leanconv import dispatch
from leanconv._operators import conv_forward, is_channels_last
from leanconv.backends.call import Call

_CHUNK_ELEMENTS = 2**19
_GEOMETRY = "SymInt[] stride, SymInt[] padding, SymInt[] dilation"
_library: Any = torch.library.Library("leanconv", "FRAGMENT")
_library.define(
    f"depthwise_statistics(Tensor input, Tensor weight, {_GEOMETRY}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "depthwise_statistics_backward(Tensor grad_mean, Tensor grad_var, Tensor mean, Tensor input, "
    f"Tensor weight, bool[] wanted, {_GEOMETRY}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
depthwise_statistics = torch.ops.leanconv.depthwise_statistics.default
_backward_operator = torch.ops.leanconv.depthwise_statistics_backward.default


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _Chunks:
    """The convolution's directions over a few images at a time."""

    def __init__(self, input: Tensor, weight: Tensor, geometry: tuple[list[int], ...]) -> None:
        self.input, self.weight, self.geometry = input, weight, geometry
        stride, padding, dilation = (tuple(each) for each in geometry)
        self.call = Call(
            tuple(input.shape),
            tuple(weight.shape),
            stride,
            padding,
            dilation,
            input.shape[1],
            input.dtype,
            input.device.type,
            is_channels_last(input, weight),
            torch.get_num_threads(),
        )
        self.pixels = prod(self.call.output_size[2:])
        self.images = max(1, _CHUNK_ELEMENTS // max(1, weight.shape[0] * self.pixels))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        count = self.input.shape[0]
        for begin in range(0, count, self.images):
            yield begin, min(count, begin + self.images)

    def run(self, direction: Any, begin: int, end: int, *arguments: Any) -> Any:
        shape = (end - begin, *self.input.shape[1:])
        stride, padding, dilation = self.geometry
        sizes = (shape, tuple(self.weight.shape), stride, padding, dilation, shape[1])
        kind = (self.call.dtype, self.input.device, self.call.channels_last, "")
        plan = dispatch.plan(direction, *sizes, *kind)
        return plan(*arguments)

    def middle(self, begin: int, end: int) -> Tensor:
        result: Tensor = self.run("forward", begin, end, self.input[begin:end], self.weight, None)
        return result


def _forward(input: Tensor, weight: Tensor, *geometry: list[int]) -> tuple[Tensor, Tensor]:
    chunks = _Chunks(input, weight, geometry)
    over = [0, *range(2, input.dim())]
    count, mean = 0, input.new_zeros(weight.shape[0], dtype=torch.float64)
    squares = torch.zeros_like(mean)  # of the distances from the mean
    for begin, end in chunks:
        middle = chunks.middle(begin, end).to(_wide(input.dtype))
        var, own_mean = torch.var_mean(middle, over, correction=0)
        own = (end - begin) * chunks.pixels
        # Chan, Golub, LeVeque, "Updating formulae", 1979: joins two parts' statistics.
        apart = own_mean.double() - mean
        squares += own * var.double() + apart * apart * (count * own / max(1, count + own))
        mean += apart * (own / max(1, count + own))
        count += own
    wide = _wide(input.dtype)
    return mean.to(wide), (squares / max(1, count)).to(wide)


def _backward(
    grad_mean: Tensor,
    grad_var: Tensor,
    mean: Tensor,
    input: Tensor,
    weight: Tensor,
    wanted: list[bool],
    *geometry: list[int],
) -> tuple[Tensor, Tensor]:
    chunks = _Chunks(input, weight, geometry)
    count = max(1, input.shape[0] * chunks.pixels)
    each = (-1, *[1] * (input.dim() - 2))
    # The gradient of the intermediate is factor * intermediate + term, channel by channel.
    factor = (2 * grad_var / count).to(input.dtype).view(each)
    term = ((grad_mean - 2 * grad_var * mean) / count).to(input.dtype).view(each)
    layout = chunks.call.memory_format
    grad_input = torch.empty_like(input, memory_format=layout) if wanted[0] else input.new_empty(0)
    total = torch.zeros_like(weight, dtype=torch.float64) if wanted[1] else input.new_empty(0)
    for begin, end in chunks:
        grad = chunks.middle(begin, end).mul_(factor).add_(term)
        if wanted[0]:
            grad_input[begin:end] = chunks.run("grad_input", begin, end, grad, weight)
        if wanted[1]:
            part, _ = chunks.run("grad_weight", begin, end, grad, input[begin:end], False)
            total += part.double()
    return grad_input, total.to(weight.dtype)


def _fake_forward(input: Tensor, weight: Tensor, *geometry: Any) -> tuple[Tensor, Tensor]:
    wide = _wide(input.dtype)
    return tuple(input.new_empty(weight.shape[0], dtype=wide) for _ in range(2))  # type: ignore[return-value]


def _fake_backward(
    grad_mean: Tensor,
    grad_var: Tensor,
    mean: Tensor,
    input: Tensor,
    weight: Tensor,
    wanted: list[bool],
    *geometry: Any,
) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(input) if wanted[0] else input.new_empty(0),
        input.new_empty(weight.shape if wanted[1] else 0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, weight, *ctx.geometry = inputs
    ctx.save_for_backward(input, weight, output[0])


def _differentiate(ctx: Any, grad_mean: Tensor, grad_var: Tensor) -> tuple[Any, ...]:
    input, weight, mean = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:2])
    if torch.is_grad_enabled():
        middle = conv_forward(input, weight, None, *ctx.geometry, input.shape[1], "")
        over = [0, *range(2, input.dim())]
        var, mean = torch.var_mean(middle.to(_wide(middle.dtype)), over, correction=0)
        asked = [each for each, yes in zip((input, weight), wanted, strict=True) if yes]
        found = iter(
            torch.autograd.grad((mean, var), asked, (grad_mean, grad_var), create_graph=True)
        )
        return (*(next(found) if yes else None for yes in wanted), None, None, None)
    grads = _backward_operator(grad_mean, grad_var, mean, input, weight, wanted, *ctx.geometry)
    return (*(g if yes else None for g, yes in zip(grads, wanted, strict=True)), None, None, None)


def _register_autocast(key: str, device: str) -> None:
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def autocast(input: Tensor, weight: Tensor, *geometry: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        cast = [t if t.dtype == torch.float64 else t.to(dtype) for t in (input, weight)]
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return depthwise_statistics(*cast, *geometry)

    _library.impl("depthwise_statistics", autocast, key)


_library.impl("depthwise_statistics", _forward, "CompositeExplicitAutograd")
_library.impl("depthwise_statistics_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("leanconv::depthwise_statistics", _fake_forward, lib=_library)
torch.library.register_fake("leanconv::depthwise_statistics_backward", _fake_backward, lib=_library)
torch.library.register_autograd(
    "leanconv::depthwise_statistics", _differentiate, setup_context=_save, lib=_library
)
_register_autocast("AutocastCPU", "cpu")
_register_autocast("AutocastCUDA", "cuda")
