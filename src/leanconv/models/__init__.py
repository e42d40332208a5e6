"""The networks that leanconv's own measurements are about; one file a family."""

from leanconv.models.cifar import dense_cifar, separable_cifar
from leanconv.models.irevnet import irevnet1d
from leanconv.models.registry import ModelEntry, entry, names, register
from leanconv.models.separable import rev_separable

__all__ = [
    "ModelEntry",
    "dense_cifar",
    "entry",
    "irevnet1d",
    "names",
    "register",
    "rev_separable",
    "separable_cifar",
]
