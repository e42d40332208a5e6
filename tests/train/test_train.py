import sys

import pytest
import torch

import leanconv
from leanconv.train import digits, train_steps
from leanconv.train.loop import accuracy


@pytest.fixture(scope="module")
def data():
    return digits()


def test_digits_are_all_there_at_the_size_asked_for(data):
    assert data.train_images.shape == (1500, 3, 32, 32)
    assert data.test_images.shape == (297, 3, 32, 32)
    assert set(data.train_labels.tolist()) == set(range(10))
    assert data.train_images.mean().abs() < 1e-4
    assert abs(data.train_images.std() - 1) < 1e-3
    assert digits(16).train_images.shape[-2:] == (16, 16)


def test_loaders_of_one_seed_agree(data):
    first, second = (next(iter(data.loader(8, seed=3)))[1] for _ in range(2))
    assert torch.equal(first, second)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(leanconv.LeanconvError, match=r"leanconv\[demo\]"):
        digits()


def test_training_learns_and_counts(data):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    shares = []
    run = train_steps(
        model, data, steps=30, batch_size=50, name="linear", on_progress=shares.append
    )
    assert len(run.losses) == 30
    assert run.losses[-1] < run.losses[0] / 2
    assert run.accuracy == accuracy(model, data) > 0.7
    assert model.training
    assert shares[-1] == 1.0


@pytest.mark.parametrize(
    ("steps", "batch", "name"), [(0, 8, "steps"), (1, 0, "batch_size"), (1, 1501, "batch_size")]
)
def test_impossible_runs_are_refused_by_name(data, steps, batch, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        train_steps(torch.nn.Flatten(), data, steps=steps, batch_size=batch)
