"""Train convolutional networks in PyTorch in less memory and less time, and measure it honestly."""

from leanconv import functional
from leanconv.dispatch import backends
from leanconv.layers import Conv1d, Conv2d, Conv3d

__version__ = "0.1.0"

__all__ = ["Conv1d", "Conv2d", "Conv3d", "__version__", "backends", "functional"]
