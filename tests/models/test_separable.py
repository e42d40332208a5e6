import pytest
import torch

from leanconv import models
from leanconv.measure import measure_memory


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_it_inverts_and_its_gradients_are_those_of_keeping_everything(dims):
    torch.manual_seed(0)
    saving = models.rev_separable(channels=6, depth=3, spatial_dims=dims).double()
    keeping = models.rev_separable(channels=6, depth=3, spatial_dims=dims, memory_saving=False)
    keeping = keeping.double()
    keeping.load_state_dict(saving.state_dict())
    x = torch.randn(2, 6, *[7] * dims, dtype=torch.float64)
    for each in (saving, keeping):
        each(x.clone().requires_grad_()).square().sum().backward()
    for one, other in zip(saving.parameters(), keeping.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-9)
    saving.eval()
    with torch.no_grad():
        torch.testing.assert_close(saving.inverse(saving(x)), x, rtol=1e-9, atol=1e-9)


def test_activation_memory_does_not_grow_with_depth():
    def activations(depth):
        model = models.rev_separable(channels=16, depth=depth)
        x = torch.randn(2, 16, 16, 16, requires_grad=True)
        model(x).sum().backward()
        return measure_memory(lambda: model(x).sum().backward(), model=model).peak.total_bytes - (
            2 * sum(p.numel() for p in model.parameters()) * 4
        )

    assert activations(12) <= 1.1 * activations(4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"channels": 7}, r"`channels` \(=7\)"),
        ({"kernel_size": 4}, r"`kernel_size` \(=4\)"),
        ({"spatial_dims": 4}, r"`spatial_dims` \(=4\)"),
    ],
)
def test_a_mistake_is_one_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        models.rev_separable(**options)


def test_another_number_of_channels_is_refused():
    with pytest.raises(ValueError, match="takes 4 channels"):
        models.rev_separable(channels=4, depth=1)(torch.zeros(1, 5, 4, 4))
