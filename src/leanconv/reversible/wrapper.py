"""MemCNN's wrapper: makes any invertible module save memory, forwards and inverted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from leanconv.reversible._chain import Stepwise, steps_of
from leanconv.reversible._engine import Step, run_steps
from leanconv.reversible._replay import Function
from leanconv.reversible.coupling import create_coupling


class InvertibleModuleWrapper(Stepwise):
    """Runs an invertible module without keeping what autograd saves; it is rebuilt from the output.

    Wrappers that follow one another, in an nn.Sequential or anywhere, hand their outputs on: only
    the last one's is held.

    Args:
        fn: a module with `forward` and `inverse`, of one tensor or several; a coupling is undone
            and run again in one pass, any other module by its inverse and one forward.
        keep_input: hold the input of `forward` instead of rebuilding it with `inverse`.
        keep_input_inverse: hold the input of `inverse` instead of rebuilding it with `forward`.
        num_bwd_passes: accepted for MemCNN's sake, at least 1; any number of backward passes works
            where the graph is retained.
        disable: run the module as it is, with nothing saved.
        preserve_rng_state: accepted for MemCNN's sake; the state of random number generators is
            always put back, so that dropout's gradients are right.

    Raises:
        ValueError: if `num_bwd_passes` is below 1 or `fn` has no inverse to use.

    Unlike MemCNN's, it never empties the caller's tensors, never writes `.grad` of tensors that are
    not leaves, and works with torch.autograd.grad.
    """

    def __init__(
        self,
        fn: nn.Module,
        keep_input: bool = False,
        keep_input_inverse: bool = False,
        num_bwd_passes: int = 1,
        disable: bool = False,
        preserve_rng_state: bool = False,
    ) -> None:
        super().__init__()
        if num_bwd_passes < 1:
            raise ValueError(f"`num_bwd_passes` (={num_bwd_passes}) must be at least 1")
        self.disable = disable
        self.keep_input = keep_input
        self.keep_input_inverse = keep_input_inverse
        self.num_bwd_passes = num_bwd_passes
        self.preserve_rng_state = preserve_rng_state
        self._fn = fn

    def forward(self, *xin: Tensor) -> Any:
        """`fn(*xin)`."""
        if self.disable:
            return _unpacked(self._fn(*xin))
        return _unpacked(run_steps(self.steps(), xin))

    def inverse(self, *yin: Tensor) -> Any:
        """`fn.inverse(*yin)`, with the same saving of memory."""
        if self.disable:
            undo: Function = self._fn.inverse  # type: ignore[assignment]  # torch types it as a tensor
            return _unpacked(undo(*yin))
        return _unpacked(run_steps(self.steps(inverse=True), yin))

    def steps(self, label: str = "", *, inverse: bool = False) -> list[Step]:
        """The wrapped module's steps; the first holds its input if asked to."""
        steps = steps_of(self._fn, label or type(self._fn).__name__, inverse=inverse)
        if self.keep_input_inverse if inverse else self.keep_input:
            steps[0] = steps[0].holding_input()
        return steps


class ReversibleBlock(InvertibleModuleWrapper):
    """MemCNN's older name for a wrapped coupling; deprecated there and here.

    Args:
        Fm: see AdditiveCoupling.
        Gm: see AdditiveCoupling.
        coupling: "additive" or "affine".
        keep_input: see InvertibleModuleWrapper.
        keep_input_inverse: see InvertibleModuleWrapper.
        implementation_fwd: see AdditiveCoupling.
        implementation_bwd: see AdditiveCoupling.
        adapter: see AffineCoupling.

    Raises:
        NotImplementedError: for another `coupling` or implementation.
    """

    def __init__(
        self,
        Fm: nn.Module,
        Gm: nn.Module | None = None,
        coupling: str = "additive",
        keep_input: bool = False,
        keep_input_inverse: bool = False,
        implementation_fwd: int = -1,
        implementation_bwd: int = -1,
        adapter: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        warnings.warn(
            "ReversibleBlock is deprecated; use InvertibleModuleWrapper(create_coupling(...))",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(
            create_coupling(Fm, Gm, coupling, implementation_fwd, implementation_bwd, adapter),
            keep_input=keep_input,
            keep_input_inverse=keep_input_inverse,
        )


def _unpacked(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) and len(result) == 1 else result
