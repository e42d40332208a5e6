import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import leanconv
from leanconv.profiler.recorder import Schedule, record
from leanconv.reversible import _engine

QUICK = Schedule(warmup=1, timed=2, profiled=2, memory=1)
STEPS = 6


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.last = nn.Linear(8, 2)
        self.reentrant = reentrant

    def forward(self, x):
        return self.last(checkpoint(self.inner, x, use_reentrant=self.reentrant))


def recorded(step, schedule=QUICK, steps=STEPS, **options):
    with record(schedule=schedule, **options) as r:
        for _ in range(steps):
            step()
            r.step()
    return r.profile


def seen(profile):
    return {phase.name for phase in profile.phases if any(phase.samples_seconds)}


def patches():
    return (
        torch.autograd._engine_run_backward,
        _engine.Record.rebuild,
        torch.optim.Optimizer.zero_grad,
        DataLoader.__iter__,
        len(hooks._global_forward_pre_hooks),
        len(hooks._global_forward_hooks),
        len(optimizer_hooks._global_optimizer_pre_hooks),
        len(optimizer_hooks._global_optimizer_post_hooks),
        "__enter__" in vars(torch.utils.checkpoint._recomputation_hook),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
    )


def rows(profile):
    return {row.path: row for row in profile.modules}


def test_a_loop_of_any_shape_has_its_phases():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, critic)]
    loader = DataLoader(TensorDataset(torch.ones(12, 4)), 2)
    with record(schedule=QUICK) as r:
        for (batch,) in loader:
            for sign, optimizer in zip((1, -1), optimizers, strict=True):
                optimizer.zero_grad()
                (sign * critic(generator(batch))).mean().backward()
                optimizer.step()
            r.step()
    assert r.finished
    assert seen(r.profile) == {"data", "forward", "backward", "optimizer", "other"}
    assert {"Linear", "Linear#2"} <= set(rows(r.profile))


def test_phases_of_each_step_sum_to_its_wall_time():
    model = nn.Linear(4, 2)
    profile = recorded(lambda: model(torch.ones(3, 4)).sum().backward())
    for index, wall in enumerate(profile.step_seconds):
        parts = [phase.samples_seconds[index] for phase in profile.phases]
        assert sum(parts) == pytest.approx(wall, rel=1e-9)
        assert min(parts) >= 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_recompute_and_belongs_to_its_modules(reentrant):
    model = Checkpointed(reentrant)
    data = torch.ones(3, 8, requires_grad=True)
    profile = recorded(lambda: model(data).sum().backward())
    assert "recompute" in seen(profile)
    row = rows(profile)["Checkpointed.inner.0"]
    assert row.recompute_seconds > 0
    assert row.backward_seconds > 0
    assert row.forward_seconds > 0
    assert rows(profile)["Checkpointed.last"].recompute_seconds == 0


def test_the_reversible_engine_is_recompute():
    coupling = leanconv.AdditiveCoupling(nn.Conv2d(2, 2, 3, padding=1))
    model = leanconv.ReversibleSequential(coupling)
    data = torch.ones(1, 4, 8, 8)
    profile = recorded(lambda: model(data).sum().backward())
    assert "recompute" in seen(profile)
    assert any(row.recompute_seconds > 0 for row in profile.modules if row.kind == "Conv2d")


def test_a_model_that_recomputes_nothing_has_no_recompute():
    model = nn.Linear(4, 2)
    assert "recompute" not in seen(recorded(lambda: model(torch.ones(3, 4)).sum().backward()))


def test_backward_belongs_to_the_module_whose_forward_made_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    found = rows(recorded(lambda: model(torch.ones(3, 4)).sum().backward()))
    for path in ("Sequential.0", "Sequential.1", "Sequential.2"):
        assert found[path].backward_seconds > 0
        assert found[path].calls == 2
    total = found["Sequential"].self_seconds + sum(
        found[f"Sequential.{i}"].total_seconds for i in range(3)
    )
    assert found["Sequential"].total_seconds == pytest.approx(total)


def test_shares_of_every_table_sum_to_one():
    model = Checkpointed(False)
    profile = recorded(lambda: model(torch.ones(3, 8)).sum().backward())
    for shares in (
        [row.self_cpu_share for row in profile.operators],
        [row.self_share for row in profile.modules],
        [row.self_share for row in profile.lines],
    ):
        assert sum(shares) == pytest.approx(1.0)
        assert min(shares) >= 0


def test_operators_and_their_backward_belong_to_the_line_that_called_them():
    weight = torch.ones(8, 8, requires_grad=True)

    def step():
        hidden = torch.ones(2, 8) @ weight
        hidden.tanh().sum().backward()

    lines = {row.text: row for row in recorded(step).lines}
    assert lines["hidden = torch.ones(2, 8) @ weight"].backward_seconds > 0
    assert lines["hidden.tanh().sum().backward()"].self_seconds > 0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, torch.OutOfMemoryError])
@pytest.mark.parametrize("fails_at", range(1, STEPS + 1))
def test_what_raises_leaves_nothing_behind_and_keeps_what_was_measured(error, fails_at):
    before = patches()
    model = nn.Linear(4, 2)
    r = record(schedule=QUICK)

    def loop():
        with r:
            for index in range(1, STEPS + 1):
                output = model(torch.ones(3, 4))
                if index == fails_at:
                    raise error("<b>stop</b>")
                output.sum().backward()
                r.step()

    with pytest.raises(error):
        loop()
    assert patches() == before
    assert not model.weight._post_accumulate_grad_hooks
    if fails_at <= 2:
        with pytest.raises(ValueError, match="no step has been timed"):
            _ = r.profile
        return
    profile = r.profile
    assert "stop" in profile.stopped
    assert len(profile.step_seconds) == min(2, fails_at - 2)
    assert profile.profiled_steps == min(2, max(0, fails_at - 4))
    assert profile.memory is None


def test_a_module_that_raises_inside_does_not_upset_the_phases():
    class Raises(nn.Module):
        def forward(self, x):
            raise ValueError("inside")

    model, bad = nn.Linear(4, 2), nn.Sequential(Raises())

    def step():
        with pytest.raises(ValueError, match="inside"):
            bad(torch.ones(1))
        model(torch.ones(3, 4)).sum().backward()

    profile = recorded(step)
    assert seen(profile) == {"forward", "backward", "other"}


def test_steps_past_the_schedule_run_with_nothing_attached():
    before = patches()
    model = nn.Linear(4, 2)
    with record(schedule=QUICK) as r:
        for _ in range(STEPS):
            model(torch.ones(3, 4)).sum().backward()
            r.step()
        assert patches() == before
        r.step()


def test_phases_can_be_marked_by_hand():
    with record(schedule=QUICK) as r:
        for _ in r.data([1] * STEPS):
            with r.phase("gradient sync"):
                torch.ones(3).sum()
            r.step()
    assert seen(r.profile) == {"data", "gradient sync", "other"}


def test_a_function_with_data_is_profiled():
    model = nn.Linear(4, 2)
    profile = leanconv.profile(
        lambda batch: model(batch).sum().backward(), [torch.ones(3, 4)], seconds=0.001
    )
    assert {"forward", "backward"} <= seen(profile)
    with pytest.raises(ValueError, match="`data`"):
        leanconv.profile(model)
    with pytest.raises(TypeError, match="str"):
        leanconv.profile("model")
