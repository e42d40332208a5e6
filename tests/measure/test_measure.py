import itertools
import json

import pytest
import torch
from torch import nn

from leanconv import measure
from leanconv.measure import clock, comparison, limits
from leanconv.measure.circumstances import Circumstances
from leanconv.measure.clock import WarmUp


@pytest.fixture
def ticking(monkeypatch):
    """A clock that the callables under test move themselves."""
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def taking(durations):
        supply = itertools.cycle(durations)

        def call():
            now[0] += next(supply)

        return call

    return taking


def test_raw_samples_are_kept(ticking):
    result = measure.measure(ticking([1.0]), samples=7, label="one", warmup_seconds=100)
    assert result.samples_seconds == (1.0,) * 7
    assert result.median_seconds == 1.0
    assert result.steady


def test_short_calls_are_timed_several_at_a_time(ticking):
    result = measure.measure(ticking([1e-4]), samples=3, min_sample_seconds=1e-3)
    assert result.calls_per_sample == 10
    assert result.median_seconds == pytest.approx(1e-4)


def test_warming_up_waits_for_early_and_late_windows_to_agree(ticking):
    falling = [4.0, 3.0, 2.5, 2.0, 1.5, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    warm = clock.warm_up(ticking(falling), max_seconds=1000)
    assert warm.steady
    assert warm.calls > 8
    assert warm.seconds_per_call == 1.0


def test_a_callable_that_never_settles_is_said_to_be_unsteady(ticking):
    growing = [1.1**n for n in range(60)]
    assert not clock.warm_up(ticking(growing), max_seconds=100).steady


def test_invalid_counts_are_refused_by_name():
    with pytest.raises(ValueError, match=r"`samples` \(=0\)"):
        measure.measure(lambda: None, samples=0)
    with pytest.raises(ValueError, match=r"`rounds` \(=3\)"):
        measure.compare(lambda: None, lambda: None, rounds=3)
    with pytest.raises(ValueError, match=r"`threshold` \(=1.5\)"):
        measure.compare(lambda: None, lambda: None, threshold=1.5)


def test_comparison_says_faster_slower_and_inconclusive(ticking):
    def say(a, b):
        result = measure.compare(ticking(a), ticking(b), rounds=20, self_check=True)
        assert result.self_check.verdict == "inconclusive"
        return result.verdict

    assert say([1.0], [0.5]) == "faster"
    assert say([1.0], [2.0]) == "slower"
    assert say([1.0], [1.01]) == "inconclusive"


def test_comparison_speaks_in_words_of_b_against_a(ticking):
    result = measure.compare(ticking([1.0]), ticking([0.25]), rounds=10, labels=("old", "new"))
    assert result.sentence().startswith("new is 4.00x faster than old (time ratio 0.250")
    assert result.ratio_low == result.ratio_high == 0.25


def test_the_seconds_fix_the_number_of_rounds(ticking):
    result = measure.compare(ticking([1.0]), ticking([1.0]), seconds=50)
    assert len(result.seconds_a) == len(result.order) == 25


def test_progress_reaches_the_end(ticking):
    shares = []
    call = ticking([1.0])
    measure.compare(call, call, rounds=10, self_check=True, on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_circumstances_name_the_machine_and_versions():
    here = Circumstances.now()
    assert here.processor
    assert here.torch == torch.__version__
    assert here.threads == torch.get_num_threads()
    assert here.cores >= 1


def test_records_survive_the_way_through_json(ticking):
    result = measure.compare(ticking([1.0]), ticking([0.5]), rounds=10, self_check=True)
    text = json.dumps(measure.to_data(result))
    assert measure.from_data(json.loads(text)) == result


def test_records_of_another_version_are_refused():
    with pytest.raises(ValueError, match="unknown record 'Nonsense'"):
        measure.from_data({"record": "Nonsense"})
    with pytest.raises(ValueError, match="another version"):
        measure.from_data({"record": "MemorySample", "colour": 1})


def test_limits_are_measured_once_and_cached(monkeypatch, tmp_path):
    monkeypatch.setattr(limits.platformdirs, "user_cache_dir", lambda *a, **k: str(tmp_path))
    monkeypatch.setattr(limits, "copy_bytes_per_second", lambda **k: 1e9)
    monkeypatch.setattr(limits, "gemm_flops_per_second", lambda *a: 2e9)
    first = measure.machine_limits()
    monkeypatch.setattr(limits, "copy_bytes_per_second", lambda **k: 5e9)
    assert measure.machine_limits() == first
    assert measure.machine_limits(refresh=True).copy_bytes_per_second == 5e9


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"x": {"record": "Nonsense"}}'])
def test_a_damaged_cache_of_limits_costs_only_a_measurement(monkeypatch, tmp_path, damage):
    monkeypatch.setattr(limits.platformdirs, "user_cache_dir", lambda *a, **k: str(tmp_path))
    monkeypatch.setattr(limits, "copy_bytes_per_second", lambda **k: 1e9)
    monkeypatch.setattr(limits, "gemm_flops_per_second", lambda *a: 2e9)
    (tmp_path / "limits.json").write_text(damage)
    assert measure.machine_limits().copy_bytes_per_second == 1e9


def test_an_unwritable_cache_of_limits_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    blocked = str(tmp_path / "file" / "below")
    monkeypatch.setattr(limits.platformdirs, "user_cache_dir", lambda *a, **k: blocked)
    monkeypatch.setattr(limits, "copy_bytes_per_second", lambda **k: 1e9)
    monkeypatch.setattr(limits, "gemm_flops_per_second", lambda *a: 2e9)
    assert measure.machine_limits().gemm_f32_flops_per_second == 2e9


def test_real_limits_are_positive():
    assert measure.copy_bytes_per_second(1 << 16) > 0
    assert limits.gemm_flops_per_second(torch.float32) > 0


class TestMemory:
    def test_activations_are_what_the_backward_finds_alive(self):
        layers = [nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU()) for _ in range(5)]
        model = nn.Sequential(*layers)
        x = torch.ones(32, 64)
        result = measure.measure_memory(lambda: model(x).sum().backward(), model=model)
        peak = result.peak
        tensor = 32 * 64 * 4
        # Each ReLU keeps its output, which is the next layer's input; the sum is a few bytes.
        most = max(s.activations_bytes for s in result.curve)
        assert 5 * tensor <= most <= 5 * tensor + 64
        assert peak.parameters_bytes == 5 * 64 * 64 * 4
        assert peak.inputs_bytes == tensor

    def test_gradients_and_optimizer_state_are_told_apart(self):
        model = nn.Linear(256, 256, bias=False)
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.ones(1, 256)

        def step():
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

        step()
        peak = measure.measure_memory(step, model=model, optimizer=optimizer).peak
        weight = 256 * 256 * 4
        assert peak.gradients_bytes == weight
        assert 2 * weight <= peak.optimizer_bytes <= 2 * weight + 64

    def test_views_of_one_storage_count_once(self):
        def step():
            whole = torch.ones(1000)
            return [whole[:500], whole.view(10, 100), whole.detach()]

        assert measure.measure_memory(step).total_bytes == 4000

    def test_what_is_freed_no_longer_counts(self):
        def step():
            for _ in range(10):
                torch.ones(1000)

        assert measure.measure_memory(step).total_bytes == 4000

    def test_the_curve_holds_the_peak_and_stays_short(self):
        def step():
            kept = [torch.ones(100) for _ in range(1000)]
            return len(kept)

        result = measure.measure_memory(step)
        assert result.total_bytes == 400_000
        assert result.peak in result.curve
        assert len(result.curve) <= 201
        assert result.resident_peak_bytes > 0

    def test_a_step_that_raises_leaves_no_hook(self):
        model = nn.Linear(4, 4)

        def step():
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            measure.measure_memory(step, model=model)
        assert not model.weight._post_accumulate_grad_hooks

    def test_a_step_without_tensors_has_no_memory(self):
        assert measure.measure_memory(lambda: None).total_bytes == 0


def test_warm_up_results_are_plain_data():
    assert WarmUp(1, True, 0.5).seconds_per_call == 0.5
    assert comparison.MIN_ROUNDS == 10
