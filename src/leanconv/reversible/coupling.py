"""Couplings: invertible modules made of any two functions of half the channels.

Rules: MemCNN's names, arguments, defaults and state-dict keys (`Fm`, `Gm`). A coupling by itself is
an ordinary module; a ReversibleSequential or an InvertibleModuleWrapper around it saves the memory.
A subclass says in `half_steps` what it does; forward, inverse and the engine's path follow from it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from leanconv.reversible._chain import Stepwise
from leanconv.reversible._engine import Step
from leanconv.reversible._state import State
from leanconv.reversible._steps import HalfStep


class Coupling(Stepwise):
    """Two halves of a tensor along `split_dim`, each in turn joined with a function of the
    other."""

    split_dim: int

    def half_steps(self) -> list[HalfStep]:
        """What the forward does, in order."""
        raise NotImplementedError

    def steps(self, label: str, *, inverse: bool = False) -> list[Step]:
        """The engine's steps, of the forward or of the inverse."""
        steps = [replace(step, label=f"{label}.{step.label}") for step in self.half_steps()]
        return [step.inverted() for step in reversed(steps)] if inverse else [*steps]

    def forward(self, x: Tensor) -> Tensor:
        """`y`, of the input's shape."""
        return self._through(x, inverse=False)

    def inverse(self, y: Tensor) -> Tensor:
        """`x` again, from `y`."""
        return self._through(y, inverse=True)

    def _through(self, x: Tensor, inverse: bool) -> Tensor:
        state = State((x,))
        for step in self.steps(type(self).__name__, inverse=inverse):
            state = step.run(state, None)
        return state.whole()[0]


def _same_shape(update: Any, half: Tensor, label: str) -> None:
    if not isinstance(update, Tensor):
        raise ValueError(f"{label} must return a tensor, not {type(update)}")
    if update.shape != half.shape:
        raise ValueError(
            f"{label} must return the shape of the half it is joined with, {tuple(half.shape)}, "
            f"not {tuple(update.shape)}"
        )


def _scale_and_shift(update: Any, half: Tensor, label: str) -> None:
    if not (isinstance(update, (tuple, list)) and len(update) == 2):
        raise ValueError(
            f"{label} must return (scale, shift), not {type(update)}; give `adapter`, such as "
            f"AffineAdapterNaive, for a function that returns one tensor"
        )
    for item in update:
        _same_shape(item, half, label)


def _add(half: Tensor, update: Tensor) -> Tensor:
    return half + update


def _subtract(half: Tensor, update: Tensor) -> Tensor:
    return half - update


def _scale_then_shift(half: Tensor, update: tuple[Tensor, Tensor]) -> Tensor:
    scale, shift = update
    return half * scale + shift


def _unshift_then_unscale(half: Tensor, update: tuple[Tensor, Tensor]) -> Tensor:
    scale, shift = update
    return (half - shift) / scale


def _check_functions(**functions: Any) -> None:
    for name, function in functions.items():
        if not isinstance(function, nn.Module):
            raise TypeError(f"`{name}` must be a torch.nn.Module, not {type(function)}")


def _check_implementations(**implementations: int) -> None:
    for name, value in implementations.items():
        if value not in (-1, 0, 1):
            raise NotImplementedError(f"`{name}` (={value}) must be -1, 0 or 1")
    if any(value != -1 for value in implementations.values()):
        warnings.warn(
            "`implementation_fwd` and `implementation_bwd` have no effect: there is one "
            "implementation; leave them at -1",
            DeprecationWarning,
            stacklevel=3,
        )


class AdditiveCoupling(Coupling):
    """`y1 = x1 + Fm(x2)`, `y2 = x2 + Gm(y1)`, over the halves of the input.

    NICE (Dinh et al. 2014, section 3.2), as RevNet uses it (Gomez et al. 2017, section 3.1).

    Args:
        Fm: a module from the second half's shape to the first's. An odd size splits with the first
            half one longer.
        Gm: a module from the first half's shape to the second's; a deep copy of `Fm` if None.
        implementation_fwd: accepted for MemCNN's sake; -1, 0 or 1, without effect.
        implementation_bwd: likewise.
        split_dim: the dimension to split along.

    Raises:
        NotImplementedError: for another `implementation_fwd` or `implementation_bwd`.
        ValueError: when run, if a function changes the shape or the split is impossible.

    Example:
        >>> import torch
        >>> import leanconv
        >>> block = leanconv.AdditiveCoupling(torch.nn.Conv1d(4, 4, 3, padding=1))
        >>> x = torch.randn(2, 8, 16)
        >>> torch.allclose(block.inverse(block(x)), x, atol=1e-5)
        True
    """

    def __init__(
        self,
        Fm: nn.Module,
        Gm: nn.Module | None = None,
        implementation_fwd: int = -1,
        implementation_bwd: int = -1,
        split_dim: int = 1,
    ) -> None:
        super().__init__()
        _check_functions(Fm=Fm, **({} if Gm is None else {"Gm": Gm}))
        _check_implementations(
            implementation_fwd=implementation_fwd, implementation_bwd=implementation_bwd
        )
        self.Gm = copy.deepcopy(Fm) if Gm is None else Gm
        self.Fm = Fm
        self.implementation_fwd = implementation_fwd
        self.implementation_bwd = implementation_bwd
        self.split_dim = split_dim

    def half_steps(self) -> list[HalfStep]:
        """Two sums."""
        join = (_add, _subtract, _same_shape, self.split_dim)
        return [
            HalfStep(self.Fm, 0, *join, "Fm", adds=1),
            HalfStep(self.Gm, 1, *join, "Gm", adds=1),
        ]


class AffineAdapterNaive(nn.Module):
    """`scale = exp(f(x))`, `shift = f(x)`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.f = module

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`(scale, shift)`, each of the module's output shape."""
        shift = self.f(x)
        return torch.exp(shift), shift


class AffineAdapterSigmoid(nn.Module):
    """`scale = sigmoid(h[:, 1::2] + 2)`, `shift = h[:, 0::2]`, where `h = f(x)`.

    The module returns twice the channels of the half it is joined with.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.f = module

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`(scale, shift)`, each with half of the module's output channels."""
        h = self.f(x)
        if h.shape[1] % 2:
            raise ValueError(
                f"the module of AffineAdapterSigmoid must return an even number of channels, "
                f"not {h.shape[1]}"
            )
        return torch.sigmoid(h[:, 1::2] + 2.0), h[:, 0::2]


class AffineCoupling(Coupling):
    """`y1 = s1 * x1 + t1`, `(s1, t1) = Fm(x2)`; `y2 = s2 * x2 + t2`, `(s2, t2) = Gm(y1)`.

    Real NVP (Dinh et al. 2016, section 3.2).

    Args:
        Fm: a module that returns `(scale, shift)`, both of the first half's shape, given the
            second; or, with an `adapter`, a module that the adapter makes one of.
        Gm: likewise with the halves swapped; a deep copy of `Fm` if None.
        adapter: a class such as AffineAdapterNaive, put around `Fm` and `Gm`.
        implementation_fwd: accepted for MemCNN's sake; -1, 0 or 1, without effect.
        implementation_bwd: likewise.
        split_dim: the dimension to split along.

    Raises:
        NotImplementedError: for another `implementation_fwd` or `implementation_bwd`.
        ValueError: when run, if a function does not return what it must.

    A scale near zero cannot be undone; ClampedAffineCoupling bounds it.
    """

    def __init__(
        self,
        Fm: nn.Module,
        Gm: nn.Module | None = None,
        adapter: Callable[[nn.Module], nn.Module] | None = None,
        implementation_fwd: int = -1,
        implementation_bwd: int = -1,
        split_dim: int = 1,
    ) -> None:
        super().__init__()
        _check_functions(Fm=Fm, **({} if Gm is None else {"Gm": Gm}))
        _check_implementations(
            implementation_fwd=implementation_fwd, implementation_bwd=implementation_bwd
        )
        Gm = copy.deepcopy(Fm) if Gm is None else Gm
        self.Gm = Gm if adapter is None else adapter(Gm)
        self.Fm = Fm if adapter is None else adapter(Fm)
        self.implementation_fwd = implementation_fwd
        self.implementation_bwd = implementation_bwd
        self.split_dim = split_dim

    def half_steps(self) -> list[HalfStep]:
        """Two scalings with shifts."""
        join = (_scale_then_shift, _unshift_then_unscale, _scale_and_shift, self.split_dim)
        return [HalfStep(self.Fm, 0, *join, "Fm"), HalfStep(self.Gm, 1, *join, "Gm")]


class _ClampedPair(nn.Module):
    """`(exp(c * tanh(scale(x) / c)), shift(x))`: a scale between exp(-c) and exp(c)."""

    def __init__(self, scale: nn.Module, shift: nn.Module, clamp: float) -> None:
        super().__init__()
        self.scale = scale
        self.shift = shift
        self.clamp = clamp

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(self.clamp * torch.tanh(self.scale(x) / self.clamp)), self.shift(x)


class ClampedAffineCoupling(Coupling):
    """An affine coupling of separate scale and shift functions, its log-scale clamped softly.

    `y1 = exp(c * tanh(Fs(x2) / c)) * x1 + Ft(x2)`, then the same for `y2` with `Gs(y1)`, `Gt(y1)`.

    Args:
        Fs: a module of the second half's shape to the first's: the log-scale before clamping.
        Ft: likewise, the shift.
        Gs: of the first half's shape to the second's; a deep copy of `Fs` if None.
        Gt: likewise; a deep copy of `Ft` if None.
        clamp: the largest absolute log-scale `c`, above 0.
        split_dim: the dimension to split along.

    Raises:
        ValueError: if `clamp` is not positive.
    """

    def __init__(
        self,
        Fs: nn.Module,
        Ft: nn.Module,
        Gs: nn.Module | None = None,
        Gt: nn.Module | None = None,
        clamp: float = 2.0,
        split_dim: int = 1,
    ) -> None:
        super().__init__()
        if not clamp > 0:
            raise ValueError(f"`clamp` (={clamp}) must be above 0")
        self.Fm = _ClampedPair(Fs, Ft, clamp)
        self.Gm = _ClampedPair(
            copy.deepcopy(Fs) if Gs is None else Gs, copy.deepcopy(Ft) if Gt is None else Gt, clamp
        )
        self.split_dim = split_dim

    def half_steps(self) -> list[HalfStep]:
        """Two scalings with shifts."""
        join = (_scale_then_shift, _unshift_then_unscale, _scale_and_shift, self.split_dim)
        return [HalfStep(self.Fm, 0, *join, "Fm"), HalfStep(self.Gm, 1, *join, "Gm")]


class MomentumCoupling(Coupling):
    """`v' = gamma * v + (1 - gamma) * f(x)`, `x' = x + v'`; the input is `x` and `v` joined.

    A residual network with momentum (Sander et al. 2021, equation 5): one function a block, any
    shape-preserving one.

    Args:
        f: a module that keeps the shape of a half.
        gamma: the momentum, above 0 and at most 1. Undoing a block divides by it, so rounding grows
            by `1 / gamma` a block.
        split_dim: the dimension along which `x` and `v` are joined.

    Raises:
        ValueError: if `gamma` is out of range.
    """

    def __init__(self, f: nn.Module, gamma: float = 0.9, split_dim: int = 1) -> None:
        super().__init__()
        if not 0 < gamma <= 1:
            raise ValueError(f"`gamma` (={gamma}) must be above 0 and at most 1")
        self.f = f
        self.gamma = gamma
        self.split_dim = split_dim
        self._speed = nn.Identity()

    def half_steps(self) -> list[HalfStep]:
        """The speed, then the place."""
        gamma = self.gamma
        return [
            HalfStep(
                self.f,
                1,
                lambda v, f: gamma * v + (1 - gamma) * f,
                lambda v, f: (v - (1 - gamma) * f) / gamma,
                _same_shape,
                self.split_dim,
                "f",
            ),
            HalfStep(self._speed, 0, _add, _subtract, _same_shape, self.split_dim, "step"),
        ]


class Invertible(nn.Module):
    """Any pair of functions, each the other's inverse, as one invertible module.

    Args:
        forward: of a tensor, or several, to a tensor or a tuple of them.
        inverse: from those back.

    Either may be a module, whose parameters are then this module's too.
    """

    def __init__(self, forward: Callable[..., Any], inverse: Callable[..., Any]) -> None:
        super().__init__()
        self.forward_function = forward
        self.inverse_function = inverse

    def forward(self, *x: Tensor) -> Any:
        """The first function."""
        return self.forward_function(*x)

    def inverse(self, *y: Tensor) -> Any:
        """The second function."""
        return self.inverse_function(*y)


def create_coupling(
    Fm: nn.Module,
    Gm: nn.Module | None = None,
    coupling: str = "additive",
    implementation_fwd: int = -1,
    implementation_bwd: int = -1,
    adapter: Callable[[nn.Module], nn.Module] | None = None,
) -> Coupling:
    """An AdditiveCoupling or an AffineCoupling, by name.

    Args:
        Fm: see the coupling.
        Gm: see the coupling.
        coupling: "additive" or "affine".
        implementation_fwd: see the coupling.
        implementation_bwd: see the coupling.
        adapter: for "affine" only.

    Raises:
        NotImplementedError: for another `coupling`.
    """
    if coupling == "additive":
        return AdditiveCoupling(Fm, Gm, implementation_fwd, implementation_bwd)
    if coupling == "affine":
        return AffineCoupling(Fm, Gm, adapter, implementation_fwd, implementation_bwd)
    raise NotImplementedError(f'`coupling` (={coupling!r}) must be "additive" or "affine"')
