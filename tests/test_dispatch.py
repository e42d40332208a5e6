from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading

import pytest
import torch

import leanconv
from leanconv import dispatch

CALL = dispatch.Call(
    (2, 8, 9, 9), (8, 1, 3, 3), (1, 1), (1, 1), (1, 1), 8, torch.float32, "cpu", False, 2
)


def test_an_unknown_backend_names_those_that_exist():
    with pytest.raises(
        ValueError, match="`backend` \\(='cudnn'\\) must be one of native, aten, aten_relaid"
    ):
        dispatch.configure(backend="cudnn")


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="`mode` \\(='fast'\\)"):
        dispatch.configure(mode="fast")


def test_a_pinned_backend_that_cannot_serve_says_every_reason():
    call = dataclasses.replace(CALL, dtype=torch.float64, device="cuda")
    with pytest.raises(ValueError, match=r"native.*device.*cuda.*float64"):
        dispatch.choose(call, "forward", "native")


def test_a_pinned_backend_outside_its_reach_is_an_error_in_the_functional_too():
    input, weight = torch.zeros(1, 4, 6, 6).double(), torch.zeros(4, 1, 3, 3).double()
    with pytest.raises(ValueError, match="float64"):
        leanconv.functional.conv2d(input, weight, groups=4, backend="native")


def test_off_is_stock():
    with dispatch.using(mode="off"):
        assert dispatch.choose(CALL, "forward").name == "aten"


def test_the_rule_takes_native_only_with_a_kernel_of_its_own():
    native = dispatch.named("native")
    for direction in dispatch.DIRECTIONS:
        slow = native.why_not(CALL, direction) or native.why_slow(CALL, direction)
        assert dispatch.choose(CALL, direction).name == ("aten" if slow else "native")


def test_plans_do_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(dispatch, "_REMEMBERED", 4)
    weight = torch.zeros(4, 1, 3, requires_grad=True)
    for length in range(8, 20):
        leanconv.functional.conv1d(torch.zeros(1, 4, length), weight, groups=4, backend="native")
    assert len(dispatch._plans) <= 4
    assert len(dispatch._stock) <= 4


def _step():
    torch.manual_seed(3)
    input = torch.randn(4, 16, 20, 20)
    weight = torch.randn(16, 1, 3, 3, requires_grad=True)
    output = leanconv.functional.conv2d(input, weight, padding=1, groups=16, backend="native")
    output.square().sum().backward()
    return weight.grad


def test_several_threads_at_once_get_the_same_numbers():
    expected, results = _step(), {}
    torch.manual_seed(0)
    input = torch.randn(4, 16, 20, 20)
    weight = torch.randn(16, 1, 3, 3)

    def run(which):
        for _ in range(20):
            results[which] = leanconv.functional.conv2d(
                input, weight, padding=1, groups=16, backend="native"
            )

    threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert all(torch.equal(results[0], results[n]) for n in range(6))
    assert torch.equal(expected, _step())


# In processes of their own: a fork of the test process would carry its threads' locks along.
_FORK = """
import os, signal, torch, leanconv
x, w = torch.randn(4, 16, 20, 20), torch.randn(16, 1, 3, 3)
run = lambda: leanconv.functional.conv2d(x, w, padding=1, groups=16, backend="native")
expected = run()
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(0 if torch.equal(run(), expected) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(run(), expected)
"""
_LOADER = """
import torch, leanconv
from torch.utils.data import DataLoader, Dataset
w = torch.ones(8, 1, 3, 3)
class Blurred(Dataset):
    def __len__(self): return 12
    def __getitem__(self, n):
        x = torch.full((8, 10, 10), float(n))
        return leanconv.functional.conv2d(x, w, groups=8, backend="native")
if __name__ == "__main__":
    Blurred()[0]
    loader = DataLoader(
        Blurred(), batch_size=4, num_workers=2, timeout=60, multiprocessing_context="fork"
    )
    assert [b[:, 0, 0, 0].tolist() for b in loader] == [
        [9.0 * n for n in range(first, first + 4)] for first in (0, 4, 8)
    ]
"""
_ONE_OPENMP = """
import torch, leanconv
leanconv.functional.conv1d(torch.ones(1, 4, 9), torch.ones(4, 1, 3), groups=4, backend="native")
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
assert len(mapped) == 1, mapped
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fork and /proc are Linux's")
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(_FORK, id="after a fork"),
        pytest.param(_LOADER, id="in data loader workers"),
        pytest.param(_ONE_OPENMP, id="with one OpenMP runtime mapped"),
    ],
)
def test_the_kernels_work(script, tmp_path):
    file = tmp_path / "script.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert done.returncode == 0, done.stderr


def fixed_times(monkeypatch, **seconds):
    """Lets the trials report these times; returns the list of trials made."""
    made = []

    def trial(call, direction, candidates, budget):
        made.append((call, direction))
        return seconds or None

    monkeypatch.setattr(dispatch._trial, "trial", trial)
    return made


def test_a_measured_choice_is_remembered_in_the_process_and_on_disk(monkeypatch):
    made = fixed_times(monkeypatch, aten=2.0, aten_relaid=1.0)
    with dispatch.using(mode="auto"):
        assert dispatch.choose(CALL, "grad_weight").name == "aten_relaid"
        assert dispatch.choose(CALL, "grad_weight").name == "aten_relaid"
        dispatch.forget()
        assert dispatch.choose(CALL, "grad_weight").name == "aten_relaid"
    assert len(made) == 1
    (stored,) = dispatch.choices().all()
    assert stored.seconds == {"aten": 2.0, "aten_relaid": 1.0}


def test_a_gain_within_the_noise_leaves_stock(monkeypatch):
    fixed_times(monkeypatch, aten=1.0, aten_relaid=0.97)
    with dispatch.using(mode="auto"):
        assert dispatch.choose(CALL, "forward").name == "aten"


def test_a_budget_too_short_to_tell_takes_the_rule_and_stores_nothing(monkeypatch):
    with dispatch.using(mode="rules"):
        rule = dispatch.choose(CALL, "forward").name
    with dispatch.using(mode="auto", budget_seconds=0.0):
        assert dispatch.choose(CALL, "forward").name == rule
    assert dispatch.choices().all() == []


def test_rules_never_time_anything(monkeypatch):
    made = fixed_times(monkeypatch, aten=1.0)
    dispatch.choose(CALL, "forward")
    assert made == []


def test_tracing_times_nothing(monkeypatch):
    made = fixed_times(monkeypatch, aten=1.0)
    weight = torch.ones(8, 1, 3)

    def conv(x):
        return leanconv.functional.conv1d(x, weight, groups=8)

    with dispatch.using(mode="auto"):
        torch.export.export(_Wrapped(conv), (torch.ones(1, 8, 9),))
    assert made == []


class _Wrapped(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def test_a_trial_leaves_random_state_and_graph_alone():
    state = torch.get_rng_state()
    with dispatch.using(mode="measure", tune_seconds=0.2):
        for direction in dispatch.DIRECTIONS:
            dispatch.choose(CALL, direction)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_other_layout_gives_the_same_numbers_in_the_calls_own_layout(dims, channels_last):
    layout = torch.contiguous_format
    if channels_last:
        layout = torch.channels_last if dims == 2 else torch.channels_last_3d
    input = torch.randn(2, 4, *[7] * dims).contiguous(memory_format=layout).requires_grad_()
    weight, bias = torch.randn(8, 1, *[3] * dims), torch.randn(8)
    weight.requires_grad_()
    bias.requires_grad_()
    conv = getattr(leanconv.functional, f"conv{dims}d")
    results = []
    for backend in ("aten", "aten_relaid"):
        output = conv(input, weight, bias, 1, 1, 1, 4, backend=backend)
        assert output.is_contiguous(memory_format=layout)
        grads = torch.autograd.grad(output.square().sum(), (input, weight, bias))
        results.append([output, *grads])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
