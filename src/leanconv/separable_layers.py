"""Depthwise-separable convolutions as modules: `SeparableConv1d/2d/3d`.

Rules: the halves are the modules `depthwise` and `pointwise`, with a `norm` between them where
there is one, so that their parameters have the names they have in a hand-written pair. A norm is
folded into the depthwise weights: in evaluation from its running statistics, in training from the
batch's, which takes one more pass over the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanconv import _separable
from leanconv._checks import geometry
from leanconv._statistics import depthwise_statistics
from leanconv.backends.separable.activation import NAMES, activate

_CONV: dict[int, type[nn.modules.conv._ConvNd]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_NORM: dict[int, type[nn.modules.batchnorm._BatchNorm]] = {
    1: nn.BatchNorm1d,
    2: nn.BatchNorm2d,
    3: nn.BatchNorm3d,
}
_FUNCTION: dict[int, Callable[..., Tensor]] = {
    1: _separable.separable_conv1d,
    2: _separable.separable_conv2d,
    3: _separable.separable_conv3d,
}


class _SeparableConvNd(nn.Module):
    spatial_dims: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        depth_multiplier: int = 1,
        norm: str | nn.Module | None = None,
        activation: str | None = None,
        bias: bool | tuple[bool, bool] = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if type(depth_multiplier) is not int or depth_multiplier < 1:
            raise ValueError(f"`depth_multiplier` (={depth_multiplier}) must be at least 1.")
        if (activation or "") not in NAMES:
            known = ", ".join(repr(name) for name in NAMES if name)
            raise ValueError(f"`activation` (={activation!r}) must be None or one of {known}.")
        conv: Any = _CONV[self.spatial_dims]
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        middle = in_channels * depth_multiplier
        biases = (bias, bias) if isinstance(bias, bool) else tuple(bias)
        self.depthwise: nn.modules.conv._ConvNd = conv(
            in_channels,
            middle,
            kernel_size,
            stride,
            padding,
            dilation,
            groups=in_channels,
            bias=biases[0],
            padding_mode=padding_mode,
            **kind,
        )
        self.norm = self._norm(norm, middle, kind)
        self.activation = activation
        self.pointwise: nn.modules.conv._ConvNd = conv(
            middle, out_channels, 1, bias=biases[1], **kind
        )

    def _norm(
        self, norm: str | nn.Module | None, channels: int, kind: dict[str, Any]
    ) -> nn.Module | None:
        if norm is None:
            return None
        if norm == "batch":
            return _NORM[self.spatial_dims](channels, **kind)
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            if norm.num_features != channels:
                raise ValueError(
                    f"`norm` is of {norm.num_features} channels; between the halves there are "
                    f"{channels}."
                )
            return norm
        raise ValueError(f"`norm` (={norm!r}) must be None, 'batch' or a BatchNorm module.")

    @classmethod
    def from_layers(
        cls,
        depthwise: nn.Module,
        pointwise: nn.Module,
        norm: nn.Module | None = None,
        activation: str | None = None,
    ) -> _SeparableConvNd:
        """A layer that shares the parameters of a hand-written pair.

        Args:
            depthwise: a convolution with as many groups as input channels.
            pointwise: a dense convolution of kernel size 1, stride 1 and no padding.
            norm: a BatchNorm between them, or None.
            activation: the name of the activation between them, or None.

        Raises:
            ValueError: where the two are no such pair.
        """
        kind = _CONV[cls.spatial_dims]
        if not isinstance(depthwise, kind) or depthwise.groups != depthwise.in_channels:
            raise ValueError(f"`depthwise` (={depthwise}) must be a depthwise {kind.__name__}.")
        ones, zeros = (1,) * cls.spatial_dims, (0,) * cls.spatial_dims
        if (
            not isinstance(pointwise, kind)
            or pointwise.in_channels != depthwise.out_channels
            or pointwise.groups != 1
            or (pointwise.kernel_size, pointwise.stride) != (ones, ones)
            or pointwise.padding not in (zeros, "valid", "same")
        ):
            raise ValueError(
                f"`pointwise` (={pointwise}) must be a dense {kind.__name__} of kernel size 1, "
                f"stride 1 and no padding from {depthwise.out_channels} channels."
            )
        layer = cls(
            depthwise.in_channels,
            pointwise.out_channels,
            depthwise.kernel_size,
            depth_multiplier=depthwise.out_channels // depthwise.in_channels,
            norm=norm,
            activation=activation,
            device="meta",
        )
        layer.depthwise, layer.pointwise = depthwise, pointwise
        layer.training = depthwise.training
        return layer

    @property
    def in_channels(self) -> int:
        """Channels of the input."""
        return self.depthwise.in_channels

    @property
    def out_channels(self) -> int:
        """Channels of the output."""
        return self.pointwise.out_channels

    def forward(self, input: Tensor) -> Tensor:
        """`(N, C_in, *spatial)` or `(C_in, *spatial)` to as many dimensions of `C_out` channels."""
        first, second = self.depthwise, self.pointwise
        padding: Any = first.padding
        if first.padding_mode != "zeros":
            pads = first._reversed_padding_repeated_twice
            input = F.pad(input, pads, mode=first.padding_mode)
            padding = 0
        weight, bias = first.weight, first.bias
        if self.norm is not None:
            shape = None
            if type(self.norm) is _NORM[self.spatial_dims]:
                shape = self._geometry(input, padding)
            if shape is None:
                return self._in_steps(input, padding)
            weight, bias = self._folded(self.norm, input, shape)
        return _FUNCTION[self.spatial_dims](
            input,
            weight,
            second.weight,
            bias,
            second.bias,
            first.stride,
            padding,
            first.dilation,
            self.activation,
        )

    def _geometry(self, input: Tensor, padding: Any) -> Any:
        first = self.depthwise
        if input.dim() != self.spatial_dims + 2:
            return None
        arguments = (first.stride, padding, first.dilation, first.groups)
        return geometry(self.spatial_dims, input, first.weight, first.bias, *arguments)

    def _in_steps(self, input: Tensor, padding: Any) -> Tensor:
        # Other norms, such as synchronised ones, see the intermediate itself.
        first = self.depthwise
        conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[self.spatial_dims]
        middle = conv(
            input, first.weight, first.bias, first.stride, padding, first.dilation, first.groups
        )
        assert self.norm is not None
        output: Tensor = self.pointwise(activate(self.activation or "", self.norm(middle)))
        return output

    def _folded(self, norm: Any, input: Tensor, shape: Any) -> tuple[Tensor, Tensor]:
        """The depthwise weight and bias with the norm in them."""
        stride, zeros, extra, dilation = shape
        weight, bias = self.depthwise.weight, self.depthwise.bias
        if norm.training or norm.running_mean is None:
            padded = input if extra is None else F.pad(input, extra)
            mean, var = depthwise_statistics(padded, weight, stride, zeros, dilation)
            if bias is not None:
                mean = mean + bias
            if norm.training:
                _update(norm, mean, var, _count(padded, weight, stride, zeros, dilation))
        else:
            mean, var = norm.running_mean, norm.running_var
        scale = torch.rsqrt(var + norm.eps)
        if norm.weight is not None:
            scale = scale * norm.weight
        shift = -mean * scale if bias is None else (bias - mean) * scale
        if norm.bias is not None:
            shift = shift + norm.bias
        each = (-1, *[1] * (weight.dim() - 1))
        return (weight * scale.view(each)).to(weight.dtype), shift.to(weight.dtype)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        # Those of nn.Sequential(depthwise, pointwise) go by numbers.
        if self.norm is None and f"{prefix}depthwise.weight" not in state_dict:
            for number, name in (("0", "depthwise"), ("1", "pointwise")):
                for kind in ("weight", "bias"):
                    if f"{prefix}{number}.{kind}" in state_dict:
                        value = state_dict.pop(f"{prefix}{number}.{kind}")
                        state_dict[f"{prefix}{name}.{kind}"] = value
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        """The activation; the rest is the halves' own."""
        return "" if self.activation is None else f"activation={self.activation!r}"


def _count(
    input: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int]
) -> int:
    """Values a channel."""
    count = input.shape[0]
    for d, size in enumerate(input.shape[2:]):
        reach = dilation[d] * (weight.shape[d + 2] - 1) + 1
        count *= (size + 2 * padding[d] - reach) // stride[d] + 1
    return count


def _update(norm: Any, mean: Tensor, var: Tensor, count: int) -> None:
    """The running statistics, as `torch.nn.BatchNorm` updates them."""
    if count <= 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got {count} value a channel."
        )
    if not norm.track_running_stats or norm.running_mean is None:
        return
    with torch.no_grad():
        momentum = norm.momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(norm.num_batches_tracked)
        unbiased = var * (count / (count - 1))
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
        norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), momentum)


class SeparableConv1d(_SeparableConvNd):
    """A depthwise and a pointwise convolution as one layer, over series `(N, C, L)`.

    A drop-in for `torch.nn.Conv1d(in_channels, out_channels, kernel_size, ...)` with about
    `1 / C_out + 1 / K` of its arithmetic. For the backward it saves its input only: the tensor
    between the halves is made again (Chollet, "Xception", 2017, has the layer; the saving is ours).

    Args:
        in_channels: of the input.
        out_channels: of the output.
        kernel_size: of the depthwise half.
        stride: of the depthwise half.
        padding: of the depthwise half; numbers, "valid" or "same".
        dilation: of the depthwise half.
        depth_multiplier: channels between the halves, as a multiple of `in_channels`.
        norm: between the halves: None, "batch" or a BatchNorm module.
        activation: after the norm: None, "relu", "relu6", "silu", "gelu" or "hardswish".
        bias: of both halves, or a pair (depthwise, pointwise).
        padding_mode: as in `torch.nn.Conv1d`.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: naming the argument and the value.

    >>> leanconv.SeparableConv1d(8, 16, 3, padding=1)(torch.ones(1, 8, 16)).shape
    torch.Size([1, 16, 16])
    """

    spatial_dims = 1


class SeparableConv2d(_SeparableConvNd):
    """As `SeparableConv1d`, over images `(N, C, H, W)`.

    >>> layer = leanconv.SeparableConv2d(8, 16, 3, padding=1, norm="batch", activation="relu")
    >>> layer(torch.ones(2, 8, 16, 16)).shape
    torch.Size([2, 16, 16, 16])
    """

    spatial_dims = 2


class SeparableConv3d(_SeparableConvNd):
    """As `SeparableConv1d`, over volumes `(N, C, D, H, W)`.

    >>> leanconv.SeparableConv3d(8, 16, 3, stride=2)(torch.ones(1, 8, 5, 5, 5)).shape
    torch.Size([1, 16, 2, 2, 2])
    """

    spatial_dims = 3
