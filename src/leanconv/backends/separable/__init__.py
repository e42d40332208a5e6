"""The implementations of a depthwise-separable convolution that dispatch chooses from.

Rules as in `leanconv.backends`, with two directions: "forward", and "backward", which gives all the
gradients at once because they share the rebuilt intermediate. None of them keeps the intermediate
beyond the call.
"""

from leanconv.backends.aten import Aten
from leanconv.backends.native import Native
from leanconv.backends.separable.call import SeparableBackend, SeparableCall
from leanconv.backends.separable.fused import Fused
from leanconv.backends.separable.two_step import TwoStep

SEPARABLE: tuple[SeparableBackend, ...] = (
    Fused(),
    TwoStep("two_step", Native(), Native()),
    TwoStep("native_aten", Native(), Aten()),
    TwoStep("aten", Aten(), Aten()),
)

__all__ = ["SEPARABLE", "SeparableBackend", "SeparableCall"]
