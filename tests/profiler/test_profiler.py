import json
import os

import pytest
import torch
from torch import nn

import leanconv
from leanconv.profiler import Report, TrainingStep, units
from leanconv.profiler.rows import OUTSIDE
from leanconv.profiler.step import default_loss
from leanconv.profiler.watch import PHASES


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(256, 5),
    )


def batches():
    return [(torch.ones(2, 3, 8, 8), torch.tensor([0, 1]))]


@pytest.fixture(scope="module")
def result():
    return leanconv.profile(small_model(), batches(), seconds=0.05, name="small")


def test_phases_sum_to_the_wall_time_of_the_step(result):
    assert [phase.name for phase in result.phases] == list(PHASES)
    total = sum(phase.mean_seconds for phase in result.phases)
    assert total == pytest.approx(result.mean_step_seconds, rel=1e-9)
    assert all(seconds >= 0 for phase in result.phases for seconds in phase.samples_seconds)


def test_shares_of_the_operators_sum_to_one_and_none_is_negative(result):
    assert sum(row.self_cpu_share for row in result.operators) == pytest.approx(1.0)
    assert all(row.self_cpu_seconds >= 0 for row in result.operators)
    assert all(row.total_cpu_seconds >= 0 for row in result.operators)


def test_operators_are_found_in_their_phases(result):
    found = {(row.name, row.phase) for row in result.operators}
    assert ("aten::convolution", "forward") in found
    assert ("aten::convolution_backward", "backward") in found
    assert (OUTSIDE, "forward") in found


def test_calls_are_counted_once_a_step(result):
    calls = {(row.name, row.phase): row.calls for row in result.operators}
    assert calls["aten::convolution", "forward"] == result.profiled_steps
    assert calls["aten::convolution_backward", "backward"] == result.profiled_steps


def test_nested_calls_of_one_operator_count_their_total_once():
    def step():
        outer = torch.profiler.record_function
        with outer("outer"), outer("outer"):
            torch.ones(200_000).sum()

    result = leanconv.profile(step, seconds=0.001)
    rows = result.operators
    outer = next(row for row in rows if row.name == "outer")
    assert outer.calls == result.profiled_steps
    assert outer.total_cpu_seconds <= sum(row.self_cpu_seconds for row in rows) * 1.001


def test_everything_the_user_has_is_left_as_it_was():
    model = small_model().eval()
    model[1].train()
    optimizer = torch.optim.Adam(model.parameters())
    gradient = torch.ones_like(model[0].weight)
    model[0].weight.grad = gradient
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    leanconv.profile(model, batches(), optimizer=optimizer, seconds=0.01)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [module.training for module in model] == [False, True, False, False, False]
    assert model[0].weight.grad is gradient
    assert model[4].weight.grad is None
    assert not optimizer.state
    assert torch.equal(torch.get_rng_state(), random_state)
    assert "KINETO_LOG_LEVEL" not in os.environ


def test_a_model_that_raises_is_left_as_it_was():
    model = small_model()
    before = model[0].weight.detach().clone()

    def loss(output, target):
        if not torch.equal(model[0].weight, before):
            raise RuntimeError("after a step")
        return output.square().sum()

    with pytest.raises(RuntimeError, match="after a step"):
        leanconv.profile(model, batches(), loss=loss, seconds=0.01)
    assert torch.equal(model[0].weight, before)


def test_no_data_is_refused():
    with pytest.raises(ValueError, match="yields no batch"):
        TrainingStep(small_model(), [])()


def test_the_default_loss_takes_what_models_return():
    scores = torch.zeros(2, 4)
    assert default_loss(scores, torch.tensor([1, 2])).item() == pytest.approx(1.3863, abs=1e-4)
    assert default_loss(torch.full((2, 3, 4), 2.0), None).item() == 4.0
    assert default_loss([scores + 1, "name", scores + 1], None).item() == 2.0
    assert default_loss({"out": scores + 3}, None).item() == 9.0
    with pytest.raises(TypeError, match="str"):
        default_loss("words", None)


def test_models_with_several_inputs_take_a_batch_of_several():
    model = nn.Bilinear(3, 4, 2)
    step = TrainingStep(model, [((torch.ones(5, 3), torch.ones(5, 4)), None)])
    step()
    assert step.input_shape == (5, 3)
    assert step.loss_value() >= 0


def test_reports_survive_the_way_through_json(result):
    report = Report("title", result.circumstances, profiles=(result,))
    assert Report.from_json(report.to_json()) == report
    assert json.loads(report.to_json())["schema_version"] == 3


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema_version": 99}', '{"schema_version": 3}'])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(ValueError, match="report"):
        Report.from_json(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.5, "1.50 s"), (0.01234, "12.3 ms"), (123e-6, "123 us"), (5e-10, "0.50 ns")],
)
def test_times_have_three_digits(seconds, text):
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (3 << 20, "3.00 MiB")])
def test_sizes_are_binary(size, text):
    assert units.format_bytes(size) == text


def test_rates_are_decimal():
    assert units.format_rate(41.2e9, "B/s") == "41.2 GB/s"
