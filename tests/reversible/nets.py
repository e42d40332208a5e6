"""The functions and the plain reference that the tests of reversible/ share."""

from __future__ import annotations

import copy

import torch
from torch import nn

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
DIMS = (1, 2, 3)


def function(dims, channels_in, channels_out=None, *, norm=True, dropout=0.0, inplace=False):
    """Norm, ReLU, convolution, dropout, ReLU, convolution."""
    channels_out = channels_out or channels_in
    layers = [NORM[dims](channels_in)] if norm else []
    layers += [nn.ReLU(inplace), CONV[dims](channels_in, channels_out, 3, padding=1)]
    layers += [nn.Dropout(dropout)] if dropout else []
    layers += [nn.ReLU(), CONV[dims](channels_out, channels_out, 3, padding=1)]
    return nn.Sequential(*layers)


class Plain(nn.Module):
    """The same couplings, written out, keeping everything."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x1, x2 = x.chunk(2, dim=block.split_dim)
            y1 = x1 + block.Fm(x2.clone())
            y2 = x2 + block.Gm(y1.clone())
            x = torch.cat([y1, y2], dim=block.split_dim)
        return x


def plain_twin(stack):
    """A Plain of copies of a stack's blocks."""
    return Plain(copy.deepcopy(list(stack)))


def series(dims, batch=2, channels=6, size=5, dtype=torch.float64):
    """A random input `(batch, channels, size, ...)`."""
    return torch.randn(batch, channels, *(size,) * dims, dtype=dtype)


def assert_same_gradients(ours, theirs, tolerance=1e-10):
    """Parameters' gradients alike, a missing one missing in both."""
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance, msg=name)


def assert_same_step(ours, theirs, x, loss=lambda y: y.square().sum(), tolerance=1e-10, seed=3):
    """One training step of each: outputs, all gradients, buffers and the random state alike."""
    results = []
    for model in (ours, theirs):
        leaf = x.detach().clone().requires_grad_()
        torch.manual_seed(seed)
        y = model(leaf)
        kept = y.detach().clone()
        loss(y).backward()
        results.append((kept, leaf.grad, torch.get_rng_state()))
    (y, grad, state), (y_plain, grad_plain, state_plain) = results
    torch.testing.assert_close(y, y_plain, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(grad, grad_plain, rtol=tolerance, atol=tolerance)
    assert torch.equal(state, state_plain)
    assert_same_gradients(ours, theirs, tolerance)
    for (name, a), (_, b) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=name)
