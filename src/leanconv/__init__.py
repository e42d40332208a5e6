"""Train convolutional networks in PyTorch in less memory and less time, and measure it honestly."""

__version__ = "0.1.0"

__all__ = ["__version__"]
