"""How much arithmetic and memory traffic an operator asks for, from the shapes it was given.

Rules: a multiply-add is two operations, as in `machine_limits`. A tap that falls on padding counts
as any other. Bytes are the least that must move: each tensor read once, each result written once.
What has no formula counts nothing. Convolutions, in all forms and directions, are counted here;
matrix products and attention by the formulas of torch.utils.flop_counter, whose own convolutions
are not used because their weight gradient is too high by the number of groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

Shape = Sequence[int]


@dataclass(frozen=True)
class Work:
    """What one call asks for; `low_precision` if its operands are 16 bits wide."""

    flops: int
    bytes: int
    low_precision: bool = False


@dataclass(frozen=True)
class Call:
    """An operator's arguments as a profiler records them.

    `shapes` has an empty one for what is no tensor, `values` has None for what is.
    """

    name: str
    shapes: Sequence[Shape]
    values: Sequence[Any]
    item_bytes: int = 4

    def shape(self, index: int) -> Shape:
        """The shape of an argument; empty where there is none."""
        shape = self.shapes[index] if index < len(self.shapes) else ()
        return shape if all(isinstance(size, int) for size in shape) else ()

    def ints(self, index: int) -> list[int]:
        """A list of sizes among the arguments."""
        value = self.values[index]
        return [int(each) for each in value]

    def flags(self, index: int) -> list[bool]:
        """A list of booleans among the arguments."""
        return [bool(each) for each in self.values[index]]


@dataclass(frozen=True)
class _Order:
    """At which places an operator takes its geometry; -1 where it takes none."""

    stride: int
    padding: int
    dilation: int = -1
    output_padding: int = -1
    transposed: bool = False


# Every operator that runs a convolution's forward, (input, weight, ...) in front.
_FORWARDS = {
    "leanconv::conv_forward": _Order(3, 4, 5),
    "aten::mkldnn_convolution": _Order(4, 3, 5),
    "aten::mkldnn_convolution_transpose": _Order(5, 3, 6, 4, transposed=True),
    "aten::thnn_conv2d": _Order(4, 5),
    "aten::_slow_conv2d_forward": _Order(4, 5),
    "aten::slow_conv3d": _Order(4, 5),
    "aten::slow_conv3d_forward": _Order(4, 5),
    "aten::slow_conv_dilated2d": _Order(4, 5, 6),
    "aten::slow_conv_dilated3d": _Order(4, 5, 6),
    "aten::slow_conv_transpose2d": _Order(4, 5, 7, 6, transposed=True),
    "aten::slow_conv_transpose3d": _Order(4, 5, 7, 6, transposed=True),
    "aten::_nnpack_spatial_convolution": _Order(4, 3),
    "aten::cudnn_convolution": _Order(3, 2, 4),
    "aten::cudnn_convolution_transpose": _Order(4, 2, 5, 3, transposed=True),
    "aten::miopen_convolution": _Order(4, 3, 5),
    "aten::miopen_depthwise_convolution": _Order(4, 3, 5),
    "aten::_conv_depthwise2d": _Order(4, 5, 6),
    "aten::conv_depthwise3d": _Order(4, 5, 6),
}
# These say themselves whether they are transposed.
_GENERAL = ("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
_CPU_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


def work_of(call: Call) -> Work | None:
    """The work of a call, or None where there is no formula for it."""
    formula = _formula(call.name)
    if formula is None:
        return None
    try:
        found = formula(call)
    except (IndexError, TypeError, ValueError, AttributeError, AssertionError):
        return None  # another version's arguments, or shapes that were not recorded
    if found is None:
        return None
    flops, elements = found
    return Work(flops, elements * call.item_bytes, call.item_bytes == 2)


_Found = tuple[int, int] | None  # operations, and elements moved


def _formula(name: str) -> Callable[[Call], _Found] | None:
    if name in _FORWARDS:
        return _forward
    if name in _GENERAL:
        return _general
    return _OTHERS.get(name) or (_from_torch if _torch_formula(name) else None)


def convolution_flops(coarse: Shape, batch: int, weight: Shape) -> int:
    """Operations of one direction of a convolution; all three directions ask for the same.

    Each position of the coarser side (the output, or a transposed convolution's input) meets each
    element of the weight once, whatever the number of groups.

    Args:
        coarse: the spatial sizes of that side.
        batch: N.
        weight: the weight's shape, `(C_out, C_in / groups, *kernel)`.
    """
    return 2 * batch * math.prod(coarse) * math.prod(weight)


def _output(
    input: Shape, weight: Shape, stride: list[int], padding: list[int], dilation: list[int]
) -> list[int]:
    return [
        (size + 2 * pad - gap * (taps - 1) - 1) // step + 1
        for size, taps, step, pad, gap in zip(
            input[2:], weight[2:], stride, padding, dilation, strict=True
        )
    ]


def _transposed_output(
    input: Shape,
    weight: Shape,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    extra: list[int],
) -> list[int]:
    return [
        (size - 1) * step - 2 * pad + gap * (taps - 1) + more + 1
        for size, taps, step, pad, gap, more in zip(
            input[2:], weight[2:], stride, padding, dilation, extra, strict=True
        )
    ]


def _forward(call: Call) -> _Found:
    order = _FORWARDS[call.name]
    return _count_forward(call, order, order.transposed, 1)


def _general(call: Call) -> _Found:
    transposed = bool(call.values[6])
    groups = int(call.values[8])
    return _count_forward(call, _Order(3, 4, 5, 7), transposed, groups)


def _count_forward(call: Call, order: _Order, transposed: bool, groups: int) -> _Found:
    input, weight = call.shape(0), call.shape(1)
    if len(input) < 3 or len(weight) != len(input):
        return None
    dims = len(input) - 2

    def geometry(index: int, default: int) -> list[int]:
        given = call.ints(index) if index >= 0 else [default]
        return given * dims if len(given) == 1 else given

    stride, padding, dilation = (
        geometry(order.stride, 1),
        geometry(order.padding, 0),
        geometry(order.dilation, 1),
    )
    if transposed:
        extra = geometry(order.output_padding, 0)
        spatial = _transposed_output(input, weight, stride, padding, dilation, extra)
        coarse, channels = input[2:], weight[1] * groups
    else:
        spatial = _output(input, weight, stride, padding, dilation)
        coarse, channels = spatial, weight[0]
    flops = convolution_flops(coarse, input[0], weight)
    bias = channels if len(call.shape(2)) == 1 else 0
    moved = math.prod(input) + math.prod(weight) + bias
    return flops, moved + input[0] * channels * math.prod(spatial)


def _gradients(
    grad_output: Shape, input: Shape, weight: Shape, mask: list[bool], transposed: bool
) -> _Found:
    if len(input) < 3 or len(weight) != len(input) or len(grad_output) != len(input):
        return None
    coarse = input[2:] if transposed else grad_output[2:]
    one = convolution_flops(coarse, input[0], weight)
    x, w, dy = math.prod(input), math.prod(weight), math.prod(grad_output)
    flops, moved = 0, dy
    if mask[0]:
        flops, moved = flops + one, moved + w + x
    if mask[1]:
        flops, moved = flops + one, moved + x + w
    if mask[2]:
        flops, moved = flops + dy, moved + grad_output[1]
    return (flops, moved) if any(mask) else (0, 0)


def _convolution_backward(call: Call) -> _Found:
    shapes = call.shape(0), call.shape(1), call.shape(2)
    return _gradients(*shapes, call.flags(10), bool(call.values[7]))


def _slow_backward(call: Call) -> _Found:
    return _gradients(call.shape(0), call.shape(1), call.shape(2), call.flags(6), False)


def _grad_input(call: Call) -> _Found:
    return _gradients(call.shape(0), call.ints(2), call.shape(1), [True, False, False], False)


def _grad_weight(call: Call) -> _Found:
    mask = [False, True, bool(call.values[4])]
    return _gradients(call.shape(0), call.shape(1), call.ints(2), mask, False)


def _separable_forward(call: Call) -> _Found:
    input, depthwise, pointwise = call.shape(0), call.shape(1), call.shape(3)
    if len(input) < 3 or len(depthwise) != len(input):
        return None
    spatial = _output(input, depthwise, call.ints(5), call.ints(6), call.ints(7))
    flops = sum(convolution_flops(spatial, input[0], weight) for weight in (depthwise, pointwise))
    biases = math.prod(call.shape(2) or (0,)) + math.prod(call.shape(4) or (0,))
    moved = math.prod(input) + math.prod(depthwise) + math.prod(pointwise) + biases
    return flops, moved + input[0] * pointwise[0] * math.prod(spatial)


def _separable_backward(call: Call) -> _Found:
    """Counts the intermediate's second making: the operator cannot do without."""
    grad_output, input, depthwise, pointwise = (call.shape(index) for index in (0, 1, 2, 4))
    if len(input) < 3 or len(depthwise) != len(input):
        return None
    to_input, to_depthwise, to_bias, to_pointwise, to_pointwise_bias = call.flags(5)
    middle = to_input or to_depthwise or to_bias
    one = convolution_flops(grad_output[2:], input[0], depthwise)
    wide = convolution_flops(grad_output[2:], input[0], pointwise)
    flops = one * (to_input + to_depthwise + (middle or to_pointwise))
    flops += wide * (middle + to_pointwise) + math.prod(grad_output) * to_pointwise_bias
    flops += to_bias * input[0] * depthwise[0] * math.prod(grad_output[2:])
    x, dw, pw = math.prod(input), math.prod(depthwise), math.prod(pointwise)
    moved = math.prod(grad_output) + x + dw + pw
    moved += to_input * x + to_depthwise * dw + to_pointwise * pw
    return flops, moved + to_bias * depthwise[0] + to_pointwise_bias * pointwise[0]


def _torch_formula(name: str) -> Callable[..., int] | None:
    namespace, _, operator = name.partition("::")
    if namespace != "aten" or not operator:
        return None
    if name == _CPU_ATTENTION:
        operator = "_scaled_dot_product_flash_attention"
    packet = getattr(torch.ops.aten, operator, None) if operator.isidentifier() else None
    return flop_registry.get(packet)


def _from_torch(call: Call) -> _Found:
    formula = _torch_formula(call.name)
    shapes = [shape for shape in call.shapes if len(shape) > 0]
    if formula is None or not shapes:
        return None
    count = getattr(formula, "__wrapped__", formula)
    arguments = [
        list(shape) if len(shape) else value
        for shape, value in zip(call.shapes, call.values, strict=True)
    ]
    flops = int(count(*arguments))
    read = sum(math.prod(shape) for shape in shapes)
    return flops, read + _matrix_output(call)


def _matrix_output(call: Call) -> int:
    """The elements of a product's result; of attention, the query's."""
    operator = call.name.partition("::")[2]
    first = 1 if operator in ("addmm", "addmm_", "baddbmm", "baddbmm_") else 0
    a, b = call.shape(first), call.shape(first + 1)
    if operator in ("mm", "bmm", "addmm", "baddbmm"):
        return math.prod(a[:-1]) * b[-1]
    return math.prod(a)


def _pointwise(reads: int) -> Callable[[Call], _Found]:
    """An operator whose result is as large as its largest argument."""

    def count(call: Call) -> _Found:
        sizes = [math.prod(shape) for shape in call.shapes[:reads] if len(shape)]
        return (0, sum(sizes) + max(sizes)) if sizes else None

    return count


def _copy(call: Call) -> _Found:
    # Its target is overwritten, not read.
    sizes = [math.prod(shape) for shape in call.shapes[:2] if len(shape)]
    return (0, sum(sizes)) if len(sizes) == 2 else None


# Their arithmetic is not counted, because memory limits them; their traffic is.
_TRAFFIC = {
    1: "relu relu_ clamp_min clamp_min_ hardtanh hardtanh_ hardswish hardswish_ silu silu_ gelu "
    "sigmoid sigmoid_ tanh tanh_ exp log sqrt neg abs square pow dropout native_dropout clone "
    "batch_norm native_batch_norm native_layer_norm native_group_norm",
    2: "add add_ sub sub_ mul mul_ div div_ threshold_backward hardtanh_backward gelu_backward "
    "hardswish_backward silu_backward sigmoid_backward tanh_backward native_batch_norm_backward",
    3: "addcmul addcmul_ addcdiv addcdiv_ lerp lerp_",
}
_OTHERS: dict[str, Callable[[Call], _Found]] = {
    "aten::convolution_backward": _convolution_backward,
    "aten::convolution_backward_overrideable": _convolution_backward,
    "aten::_slow_conv2d_backward": _slow_backward,
    "leanconv::conv_grad_input": _grad_input,
    "leanconv::conv_grad_weight": _grad_weight,
    "leanconv::separable_forward": _separable_forward,
    "leanconv::separable_backward": _separable_backward,
    "aten::copy_": _copy,
    **{
        f"aten::{name}": _pointwise(reads)
        for reads, names in _TRAFFIC.items()
        for name in names.split()
    },
}
