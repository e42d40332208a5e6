"""Reversible networks: activations are rebuilt from outputs in the backward pass, not kept."""

from leanconv.reversible.check import StepError, is_invertible_module, reconstruction_error
from leanconv.reversible.coupling import (
    AdditiveCoupling,
    AffineAdapterNaive,
    AffineAdapterSigmoid,
    AffineCoupling,
    ClampedAffineCoupling,
    Coupling,
    Invertible,
    MomentumCoupling,
    create_coupling,
)
from leanconv.reversible.exact import to_grid
from leanconv.reversible.plan import Plan
from leanconv.reversible.reshape import (
    HaarDownsample1d,
    HaarDownsample2d,
    HaarDownsample3d,
    InjectivePad,
    Squeeze1d,
    Squeeze2d,
    Squeeze3d,
)
from leanconv.reversible.sequential import ReversibleSequential
from leanconv.reversible.wrapper import InvertibleModuleWrapper, ReversibleBlock

__all__ = [
    "AdditiveCoupling",
    "AffineAdapterNaive",
    "AffineAdapterSigmoid",
    "AffineCoupling",
    "ClampedAffineCoupling",
    "Coupling",
    "HaarDownsample1d",
    "HaarDownsample2d",
    "HaarDownsample3d",
    "InjectivePad",
    "Invertible",
    "InvertibleModuleWrapper",
    "MomentumCoupling",
    "Plan",
    "ReversibleBlock",
    "ReversibleSequential",
    "Squeeze1d",
    "Squeeze2d",
    "Squeeze3d",
    "StepError",
    "create_coupling",
    "is_invertible_module",
    "reconstruction_error",
    "to_grid",
]
