"""Data sets that need no download."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from leanconv.errors import LeanconvError

TEST_IMAGES = 297


@dataclass(frozen=True)
class ImageData:
    """Images `(N, 3, H, W)` in float32 and labels `(N,)` in int64, split once and for all."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def loader(self, batch_size: int, *, seed: int = 0) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled training batches; the same seed gives the same order."""
        return DataLoader(
            TensorDataset(self.train_images, self.train_labels),
            batch_size,
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(seed),
        )

    def test_batches(self, batch_size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
        """The held-out images in order."""
        yield from zip(
            self.test_images.split(batch_size), self.test_labels.split(batch_size), strict=True
        )


def digits(size: int = 32) -> ImageData:
    """Scikit-learn's 1,797 handwritten digits (8x8 grey levels), brought to 3 x `size` x `size`.

    The last 297, in the order the package ships, are held out. Pixels have mean 0 and deviation 1
    over the training images.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
    Learning Repository, 1998 (its test part).

    Raises:
        LeanconvError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise LeanconvError(
            "the digits come with scikit-learn, which is not installed; "
            "`pip install 'leanconv[demo]'` brings it"
        ) from None
    shipped = load_digits()
    images = torch.from_numpy(shipped.images).float().unsqueeze(1)
    images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    labels = torch.from_numpy(shipped.target).long()
    train = slice(None, -TEST_IMAGES)
    images = (images - images[train].mean()) / images[train].std()
    images = images.expand(-1, 3, -1, -1).contiguous()
    test = slice(-TEST_IMAGES, None)
    return ImageData("handwritten digits", images[train], labels[train], images[test], labels[test])
