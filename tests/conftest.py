"""What all tests share: deterministic examples, and torch.empty filled with NaN."""

from __future__ import annotations

import hypothesis
import pytest
import torch

from leanconv import dispatch

hypothesis.settings.register_profile(
    "leanconv",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("leanconv")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="ten times as many random configurations")


def pytest_configure(config: pytest.Config) -> None:
    pytest.random_configurations = 20000 if config.getoption("--long") else 2000


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def dispatch_follows_the_rules(tmp_path):
    with dispatch.using(mode="rules", backend="", cache=tmp_path / "choices.sqlite"):
        yield
