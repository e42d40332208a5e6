"""Convolutions to test with: random configurations, their tensors, and the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_KERNELS = {
    1: st.sampled_from([1, 2, 3, 3, 5, 7, 13, 31]),
    2: st.sampled_from([1, 2, 3, 3, 4, 5, 7, 11]),
    3: st.sampled_from([1, 2, 3, 3, 4]),
}


@dataclass(frozen=True)
class Case:
    """One convolution; `view` is how input and gradient lie in memory."""

    input_size: tuple[int, ...]
    weight_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    bias: bool = True
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    view: str = "dense"
    seed: int = 0

    @property
    def geometry(self):
        return self.stride, self.padding, self.dilation, self.groups

    def tensors(self):
        """Input, weight and bias (or None)."""
        generator = torch.Generator().manual_seed(self.seed)

        def random(size, scale=1.0):
            return (torch.randn(size, generator=generator) * scale).to(self.dtype)

        input = self.laid_out(random(self.input_size))
        fan_in = torch.Size(self.weight_size[1:]).numel()
        weight = random(self.weight_size, fan_in**-0.5)
        return input, weight, random(self.weight_size[0]) if self.bias else None

    def laid_out(self, tensor):
        """The same values in the case's layout and view."""
        if self.channels_last and tensor.dim() > 3:
            layout = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
            tensor = tensor.contiguous(memory_format=layout)
        if self.view == "offset":
            return torch.cat([tensor[:1], tensor])[1:]
        if self.view == "strided":
            return torch.stack([tensor, tensor], -1)[..., 0]
        if self.view == "transposed":
            return tensor.transpose(-1, 0).contiguous().transpose(-1, 0)
        return tensor


@st.composite
def cases(draw, dtypes=(torch.float32, torch.bfloat16, torch.float16)):
    dims = draw(st.sampled_from([1, 2, 2, 3]))

    def each(strategy):
        return tuple(draw(strategy) for _ in range(dims))

    kind = draw(st.sampled_from(["depthwise", "depthwise", "grouped", "dense"]))
    few = st.sampled_from([1, 2, 3, 4])
    groups = 1 if kind == "dense" else draw(st.sampled_from([1, 2, 3, 5, 8, 16, 17, 32]))
    per_group_in = 1 if kind == "depthwise" else draw(st.sampled_from([2, 3, 4, 8]))
    per_group_out = draw(few if kind == "depthwise" else st.sampled_from([1, 2, 4, 8]))
    kernel = each(_KERNELS[dims])
    stride, dilation = (
        each(st.sampled_from([1, 1, 1, 2, 3])),
        each(st.sampled_from([1, 1, 1, 2, 3])),
    )
    padding = tuple(
        draw(st.integers(0, min(d * (k - 1) // 2 + 2, 9)))
        for k, d in zip(kernel, dilation, strict=True)
    )
    longest = {1: 70, 2: 14, 3: 5}[dims]
    size = tuple(
        max(1, d * (k - 1) + 1 - 2 * p) + draw(st.integers(0, longest))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    )
    return Case(
        (draw(st.integers(1, 3)), groups * per_group_in, *size),
        (groups * per_group_out, per_group_in, *kernel),
        stride,
        padding,
        dilation,
        groups,
        draw(st.booleans()),
        draw(st.sampled_from(dtypes)),
        draw(st.booleans()),
        draw(st.sampled_from(["dense", "dense", "offset", "strided", "transposed"])),
        draw(st.integers(0, 2**16)),
    )


def reference(case, input, weight, bias, grad_output):
    """Output and gradients in float64 by ATen."""
    wide = [None if t is None else t.detach().double().contiguous() for t in (input, weight, bias)]
    leaves = [t.requires_grad_() for t in wide if t is not None]
    output = CONV[len(case.stride)](*wide, *case.geometry)
    grads = torch.autograd.grad(output, leaves, grad_output.double())
    return [output.detach(), *grads]


def assert_rounded(result, expected, magnitudes, what=""):
    """Asserts an error of one rounding to storage and a few to float32 of the sum of magnitudes."""
    kind = torch.finfo(result.dtype)
    allowed = (
        kind.eps * expected.abs()
        + 32 * torch.finfo(torch.float32).eps * magnitudes
        + kind.smallest_normal * kind.eps
    )
    error = (result.double() - expected).abs()
    worst = (error - allowed).max() if error.numel() else torch.tensor(0.0)
    assert worst <= 0, f"{what}: error {error.max()} where {allowed.min()} is allowed"
