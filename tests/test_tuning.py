from __future__ import annotations

import torch

import leanconv
from leanconv import dispatch


def test_tuning_stores_every_direction_and_leaves_the_model_as_it_was():
    model = torch.nn.Sequential(
        leanconv.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), leanconv.Conv2d(8, 8, 3, groups=8)
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    records = leanconv.tune(model, torch.randn(2, 3, 12, 12), seconds=1.0)
    assert {record.key for record in dispatch.choices().all()} == {r.key for r in records}
    # The first layer's input needs no gradient, but which layers need one is decided together.
    assert len(records) == 6
    assert all("aten" in record.seconds for record in records)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert dispatch.settings().mode == "rules"
