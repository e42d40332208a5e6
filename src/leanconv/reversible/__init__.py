"""Reversible networks: activations are rebuilt from outputs in the backward pass, not kept."""

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
from leanconv.reversible.sequential import ReversibleSequential
from leanconv.reversible.wrapper import InvertibleModuleWrapper, ReversibleBlock
