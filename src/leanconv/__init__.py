"""Train convolutional networks in PyTorch in less memory and less time, and measure it honestly."""

__version__ = "0.1.0"

from leanconv import functional, measure, models, profiler, reversible
from leanconv.dispatch import backends
from leanconv.errors import LeanconvError
from leanconv.layers import Conv1d, Conv2d, Conv3d
from leanconv.measure import compare
from leanconv.profiler import profile
from leanconv.reversible import (
    AdditiveCoupling,
    AffineAdapterNaive,
    AffineAdapterSigmoid,
    AffineCoupling,
    ClampedAffineCoupling,
    HaarDownsample1d,
    HaarDownsample2d,
    HaarDownsample3d,
    InjectivePad,
    Invertible,
    InvertibleModuleWrapper,
    MomentumCoupling,
    ReversibleBlock,
    ReversibleSequential,
    Squeeze1d,
    Squeeze2d,
    Squeeze3d,
    create_coupling,
    is_invertible_module,
    reconstruction_error,
)
from leanconv.separable_layers import SeparableConv1d, SeparableConv2d, SeparableConv3d
from leanconv.tuning import tune

__all__ = [
    "AdditiveCoupling",
    "AffineAdapterNaive",
    "AffineAdapterSigmoid",
    "AffineCoupling",
    "ClampedAffineCoupling",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "HaarDownsample1d",
    "HaarDownsample2d",
    "HaarDownsample3d",
    "InjectivePad",
    "Invertible",
    "InvertibleModuleWrapper",
    "LeanconvError",
    "MomentumCoupling",
    "ReversibleBlock",
    "ReversibleSequential",
    "SeparableConv1d",
    "SeparableConv2d",
    "SeparableConv3d",
    "Squeeze1d",
    "Squeeze2d",
    "Squeeze3d",
    "__version__",
    "backends",
    "compare",
    "create_coupling",
    "functional",
    "is_invertible_module",
    "measure",
    "models",
    "profile",
    "profiler",
    "reconstruction_error",
    "reversible",
    "tune",
]
