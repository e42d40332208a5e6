"""The compiled kernels of csrc/ on a CPU: fp32, bf16 and fp16 storage, sums in fp32."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from leanconv._native import Problem, library, why_unavailable
from leanconv.backends.call import Call, Direction, Run

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_DIRECTIONS: dict[Direction, int] = {"forward": 0, "grad_input": 1, "grad_weight": 2}
_LARGEST = 2**31


class Native:
    """One problem structure a call, prepared once; running it is an allocation and a C call."""

    name = "native"

    def why_unavailable(self) -> str:
        """Why the compiled library is not here; empty where it is."""
        return why_unavailable()

    def why_not(self, call: Call, direction: Direction) -> list[str]:
        """Why the kernels cannot serve this call."""
        reasons = []
        if missing := why_unavailable():
            reasons.append(missing)
        if call.device != "cpu":
            reasons.append(f"the kernels run on a CPU, not on `device` (={call.device})")
        if call.dtype not in _DTYPES:
            reasons.append(f"`dtype` (={call.dtype}) is none of float32, bfloat16, float16")
        if call.largest_elements >= _LARGEST:
            reasons.append(f"a tensor has {call.largest_elements} elements, 2**31 or more")
        if 0 in (*call.input_size, *call.weight_size, *call.output_size):
            reasons.append("a tensor is empty")
        return reasons

    def why_slow(self, call: Call, direction: Direction) -> list[str]:
        """Why only the plain loops would serve this call."""
        lib = library()
        if lib is None:
            return [why_unavailable()]
        reason = lib.leanconv_why_not(problem_of(call), _DIRECTIONS[direction])
        return [] if reason is None else [reason.decode()]

    def plan(self, call: Call, direction: Direction) -> Run:
        """The function that runs this direction of this call."""
        lib = library()
        assert lib is not None
        problem = problem_of(call)
        address = ctypes.byref(problem)
        layout, dtype = call.memory_format, call.dtype
        input_size, weight_size, output_size = call.input_size, call.weight_size, call.output_size
        channels_out = weight_size[0]
        run_forward, run_grad_input = lib.leanconv_forward, lib.leanconv_grad_input
        run_grad_weight = lib.leanconv_grad_weight

        def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            input, weight = input.contiguous(memory_format=layout), weight.contiguous()
            # A name of its own keeps a copy alive until the kernel has read it.
            bias = None if bias is None else bias.contiguous()
            output = torch.empty(output_size, dtype=dtype, memory_format=layout)
            check(
                run_forward(
                    address,
                    input.data_ptr(),
                    weight.data_ptr(),
                    None if bias is None else bias.data_ptr(),
                    output.data_ptr(),
                )
            )
            return output

        def grad_input(grad_output: Tensor, weight: Tensor) -> Tensor:
            grad_output = grad_output.contiguous(memory_format=layout)
            weight = weight.contiguous()
            result = torch.empty(input_size, dtype=dtype, memory_format=layout)
            check(
                run_grad_input(
                    address, grad_output.data_ptr(), weight.data_ptr(), result.data_ptr()
                )
            )
            return result

        def grad_weight(
            grad_output: Tensor, input: Tensor, with_bias: bool
        ) -> tuple[Tensor, Tensor | None]:
            grad_output = grad_output.contiguous(memory_format=layout)
            input = input.contiguous(memory_format=layout)
            result = torch.empty(weight_size, dtype=dtype)
            bias = torch.empty(channels_out, dtype=dtype) if with_bias else None
            check(
                run_grad_weight(
                    address,
                    grad_output.data_ptr(),
                    input.data_ptr(),
                    result.data_ptr(),
                    None if bias is None else bias.data_ptr(),
                )
            )
            return result, bias

        runs: dict[Direction, Run] = {
            "forward": forward,
            "grad_input": grad_input,
            "grad_weight": grad_weight,
        }
        return runs[direction]


def problem_of(call: Call) -> Problem:
    """The C structure that describes a call."""
    missing = 3 - call.spatial_dims

    def three(values: tuple[int, ...], filler: int) -> tuple[int, ...]:
        return (filler,) * missing + values

    return Problem(
        batch=call.input_size[0],
        channels_in=call.input_size[1],
        channels_out=call.weight_size[0],
        groups=call.groups,
        in_size=three(call.input_size[2:], 1),
        out_size=three(call.output_size[2:], 1),
        kernel=three(call.weight_size[2:], 1),
        stride=three(call.stride, 1),
        dilation=three(call.dilation, 1),
        padding=three(call.padding, 0),
        dtype=_DTYPES[call.dtype],
        layout=int(call.channels_last),
        num_threads=call.threads,
    )


def check(status: int) -> None:
    """Raises what a status of the C interface means."""
    if status == 2:
        raise MemoryError("the convolution's scratch memory could not be allocated")
    if status != 0:
        raise RuntimeError(
            f"the compiled kernels refused a problem they were chosen for ({status})"
        )
