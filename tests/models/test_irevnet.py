import pytest
import torch

from leanconv import models


@pytest.mark.parametrize("split_dim", [1, 2])
def test_saving_memory_changes_no_gradient(split_dim):
    saving = models.irevnet1d(channels=8, depth=3, split_dim=split_dim).double()
    keeping = models.irevnet1d(8, 3, split_dim, memory_saving=False).double()
    keeping.load_state_dict(saving.state_dict())
    x = torch.randn(4, 8, 12, dtype=torch.float64)
    for model in (saving, keeping):
        model(x).square().sum().backward()
    for ours, theirs in zip(saving.parameters(), keeping.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-9)


def test_the_inverse_gives_the_series_back():
    model = models.irevnet1d().eval()
    x = torch.randn(2, 32, 64)
    torch.testing.assert_close(model.inverse(model(x)), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"split_dim": 0}, "split_dim"), ({"channels": 5}, "channels")],
)
def test_arguments_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.irevnet1d(**arguments)


def test_a_wrong_input_is_one_clear_sentence():
    with pytest.raises(ValueError, match=r"takes \(N, 32, length\)"):
        models.irevnet1d()(torch.zeros(2, 31, 64))
