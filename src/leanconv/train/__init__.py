"""Training loops and the data sets they are shown on."""

from leanconv.train.data import ImageData, digits
from leanconv.train.loop import train_steps

__all__ = ["ImageData", "digits", "train_steps"]
