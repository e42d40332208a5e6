"""Train convolutional networks in PyTorch in less memory and less time, and measure it honestly."""

__version__ = "0.1.0"

from leanconv import functional, measure, models, profiler
from leanconv.dispatch import backends
from leanconv.errors import LeanconvError
from leanconv.layers import Conv1d, Conv2d, Conv3d
from leanconv.measure import compare
from leanconv.profiler import profile
from leanconv.tuning import tune

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "LeanconvError",
    "__version__",
    "backends",
    "compare",
    "functional",
    "measure",
    "models",
    "profile",
    "profiler",
    "tune",
]
