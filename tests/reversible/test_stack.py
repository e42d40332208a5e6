"""A ReversibleSequential against the same network that keeps everything."""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from leanconv import AdditiveCoupling, InvertibleModuleWrapper, ReversibleSequential, Squeeze2d
from leanconv.reversible import _engine
from reversible.nets import (
    DIMS,
    Plain,
    assert_same_gradients,
    assert_same_step,
    function,
    plain_twin,
    series,
)

both_dtypes = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-3)]
)
all_dims = pytest.mark.parametrize("dims", DIMS)


def make_stack(dims, depth=3, half=3, **options):
    return ReversibleSequential(
        *(
            AdditiveCoupling(function(dims, half, **options), function(dims, half, **options))
            for _ in range(depth)
        )
    ).double()


def rebuilds(monkeypatch):
    counted = []
    rebuild = _engine.Record.rebuild
    monkeypatch.setattr(
        _engine.Record, "rebuild", lambda self: (counted.append(self.step.label), rebuild(self))[1]
    )
    return counted


@all_dims
@both_dtypes
def test_a_step_equals_the_plain_networks(dims, dtype, tolerance):
    stack = make_stack(dims, dropout=0.3).to(dtype)
    assert_same_step(stack, plain_twin(stack), series(dims, dtype=dtype), tolerance=tolerance)


@all_dims
def test_batchnorm_statistics_are_updated_once(dims):
    stack = make_stack(dims)
    twin = plain_twin(stack)
    for _ in range(2):
        assert_same_step(stack, twin, series(dims))
    norm = stack[0].Fm[0]
    assert norm.num_batches_tracked == 2
    assert norm.running_mean is stack[0].Fm[0]._buffers["running_mean"]


@all_dims
def test_dropout_draws_the_same_numbers_again(dims):
    stack = make_stack(dims, dropout=0.5, norm=False)
    assert_same_step(stack, plain_twin(stack), series(dims))


@all_dims
def test_a_backward_after_eval_is_that_of_the_training_forward(dims):
    stack = make_stack(dims, dropout=0.5)
    twin = plain_twin(stack)
    x = series(dims)
    for model in (stack, twin):
        torch.manual_seed(0)
        y = model(x)
        model.eval()
        y.square().sum().backward()
        assert not any(m.training for m in model.modules())
    assert_same_gradients(stack, twin)


@all_dims
def test_frozen_statistics_are_used_again(dims):
    stack = make_stack(dims).eval()
    assert_same_step(stack, plain_twin(stack), series(dims))


@all_dims
def test_each_function_runs_twice_a_step(dims):
    calls = []

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = function(dims, 3)

        def forward(self, x):
            calls.append(1)
            return self.conv(x)

    stack = ReversibleSequential(*(AdditiveCoupling(Counted()) for _ in range(3))).double()
    stack(series(dims)).sum().backward()
    assert len(calls) == 2 * 2 * 3


@all_dims
def test_an_input_without_requires_grad(dims):
    stack = make_stack(dims)
    twin = plain_twin(stack)
    x = series(dims)
    for model in (stack, twin):
        model(x).square().sum().backward()
    assert_same_gradients(stack, twin)


@all_dims
def test_some_parameters_frozen(dims):
    stack = make_stack(dims)
    for i, p in enumerate(stack.parameters()):
        p.requires_grad_(i % 3 == 0)
    assert_same_step(stack, plain_twin(stack), series(dims))


@all_dims
def test_all_parameters_frozen_before_a_trained_input(dims):
    stack = make_stack(dims).requires_grad_(False)
    assert_same_step(stack, plain_twin(stack), series(dims))


@all_dims
def test_an_unused_parameter_gets_no_gradient(dims):
    stack = make_stack(dims)
    stack[1].Fm.register_parameter("unused", nn.Parameter(torch.ones(3, dtype=torch.float64)))
    assert_same_step(stack, plain_twin(stack), series(dims))
    assert stack[1].Fm.unused.grad is None


@all_dims
def test_tied_functions(dims):
    f = function(dims, 3)
    one = AdditiveCoupling(f, f)
    stack = ReversibleSequential(one, AdditiveCoupling(f, function(dims, 3)), one).double()
    assert_same_step(stack, plain_twin(stack), series(dims))


@all_dims
@pytest.mark.parametrize("inplace", [False, True])
def test_relu_before_inside_and_after(dims, inplace):
    stack = make_stack(dims, inplace=inplace, norm=False)
    twin = plain_twin(stack)

    def whole(model):
        def run(x):
            x = nn.functional.relu(x * 1.0, inplace=inplace)
            return nn.functional.relu(model(x), inplace=inplace)

        return run

    x = series(dims)
    results = []
    for model in (stack, twin):
        leaf = x.clone().requires_grad_()
        whole(model)(leaf).square().sum().backward()
        results.append(leaf.grad)
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    assert_same_gradients(stack, twin)


@all_dims
def test_the_caller_may_go_on_using_the_input(dims):
    stack = make_stack(dims)
    twin = plain_twin(stack)
    x = series(dims)
    results = []
    for model in (stack, twin):
        leaf = x.clone().requires_grad_()
        inner = leaf * 2
        view = inner[:, 1:]
        y = inner + model(inner)
        (y.square().sum() + inner.sum() + view.square().sum()).backward()
        results.append((leaf.grad, inner.detach().clone()))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(results[0][1], 2 * x)


@all_dims
def test_autograd_grad_works_and_writes_no_grad(dims):
    stack = make_stack(dims)
    twin = plain_twin(stack)
    x = series(dims).requires_grad_()
    ours = torch.autograd.grad(stack(x).square().sum(), [x, *stack.parameters()])
    theirs = torch.autograd.grad(twin(x).square().sum(), [x, *twin.parameters()])
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert x.grad is None
    assert all(p.grad is None for p in stack.parameters())


@all_dims
def test_the_gradient_of_a_middle_block_alone(dims):
    stack = make_stack(dims)
    twin = plain_twin(stack)
    x = series(dims)
    ours = torch.autograd.grad(stack(x).square().sum(), list(stack[1].parameters()))
    theirs = torch.autograd.grad(twin(x).square().sum(), list(twin.blocks[1].parameters()))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@all_dims
def test_a_second_backward_over_a_retained_graph(dims):
    stack = make_stack(dims, dropout=0.2)
    twin = plain_twin(stack)
    x = series(dims)
    for model in (stack, twin):
        torch.manual_seed(0)
        y = model(x)
        y.square().sum().backward(retain_graph=True)
        y.sum().backward()
    assert_same_gradients(stack, twin)


@all_dims
def test_two_losses_of_one_output(dims):
    stack = make_stack(dims)
    twin = plain_twin(stack)
    x = series(dims)
    for model in (stack, twin):
        y = model(x)
        (y[:, :2].square().sum() + y[:, 3:].exp().mean()).backward()
    assert_same_gradients(stack, twin)


@all_dims
def test_half_of_the_output_unused(dims):
    stack = make_stack(dims)
    assert_same_step(stack, plain_twin(stack), series(dims), loss=lambda y: y[:, :3].square().sum())


@all_dims
def test_two_forwards_before_one_backward(dims):
    stack = make_stack(dims, dropout=0.2)
    twin = plain_twin(stack)
    a, b = series(dims), series(dims, batch=3)
    for model in (stack, twin):
        torch.manual_seed(0)
        first = model(a)
        second = model(b)
        first.square().sum().backward()
        second.sum().backward()
    assert_same_gradients(stack, twin)
    torch.testing.assert_close(list(stack.buffers()), list(twin.buffers()), rtol=1e-10, atol=1e-10)


def live_tensors():
    gc.collect()
    return sum(1 for o in gc.get_objects() if type(o) is torch.Tensor)


def test_unused_outputs_leak_nothing():
    stack = make_stack(2)
    x = series(2)

    def step():
        stack(x)  # never used
        y = stack(x)
        y[:, :1].sum().backward()

    step()
    before = live_tensors()
    for _ in range(100):
        step()
    assert live_tensors() <= before


def test_a_dropped_graph_frees_its_records_without_the_garbage_collector():
    stack = make_stack(2)
    records = []
    keep = _engine.Record.__init__

    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                _engine.Record,
                "__init__",
                lambda self, *a, **k: (keep(self, *a, **k), records.append(weakref.ref(self)))[0],
            )
            y = stack(series(2))
            assert all(r() is not None for r in records)
            del y
            assert all(r() is None for r in records)
    finally:
        gc.enable()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@all_dims
def test_without_gradients_nothing_is_kept(dims, mode, monkeypatch):
    stack = make_stack(dims)
    twin = plain_twin(stack)
    x = series(dims)
    monkeypatch.setattr(_engine.Record, "__init__", lambda *_: pytest.fail("a record was made"))
    with mode():
        torch.testing.assert_close(stack(x), twin(x))


def test_hooks_fire_once():
    stack = make_stack(2)
    fired = []
    stack.register_forward_hook(lambda *_: fired.append("stack"))
    stack[0].Fm.register_forward_hook(lambda *_: fired.append("function"))
    stack[0].Fm[1].register_forward_pre_hook(lambda *_: fired.append("before"))
    stack[0].Fm[2].register_forward_hook(lambda *_: fired.append("inner"))
    stack[0].Fm[2].register_full_backward_hook(lambda *_: fired.append("backward"))
    stack[0].Fm[2].weight.register_hook(lambda _: fired.append("tensor"))
    x = series(2).requires_grad_()
    x.register_hook(lambda _: fired.append("input"))
    y = stack(x)
    y.register_hook(lambda _: fired.append("output"))
    y.sum().backward()
    assert sorted(fired) == sorted(
        ["stack", "function", "before", "inner", "backward", "tensor", "input", "output"]
    )


def test_a_hook_that_replaces_the_output_is_applied_both_times():
    stack = make_stack(2)
    twin = plain_twin(stack)
    for module in (stack[0].Fm[2], twin.blocks[0].Fm[2]):
        module.register_forward_hook(lambda _m, _i, out: out * 3)
    assert_same_step(stack, twin, series(2))


def test_a_hook_on_a_coupling_fires_once():
    stack = make_stack(2)
    twin = plain_twin(stack)
    fired = []
    stack[1].register_forward_hook(lambda *_: fired.append(1))
    assert_same_step(stack, twin, series(2))
    assert fired == [1]


@all_dims
def test_double_backward_is_right(dims):
    stack = make_stack(dims, depth=2, half=2, norm=False)
    for module in stack.modules():
        if isinstance(module, nn.ReLU):
            module.forward = torch.tanh
    x = series(dims, batch=1, channels=4, size=3).requires_grad_()
    assert torch.autograd.gradcheck(stack, (x,))
    assert torch.autograd.gradgradcheck(stack, (x,))


@all_dims
def test_double_backward_equals_the_plain_networks(dims):
    stack = make_stack(dims)
    twin = plain_twin(stack)
    x = series(dims)
    for model in (stack, twin):
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(model(leaf).square().sum(), leaf, create_graph=True)
        grad.square().sum().backward()
    assert_same_gradients(stack, twin, 1e-8)


@all_dims
def test_autocast_of_the_forward_is_that_of_the_second_run(dims):
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(x.dtype)
            return x

    blocks = []
    for _ in range(2):
        f = function(dims, 4)
        f.insert(3, Spy())
        blocks.append(AdditiveCoupling(f))
    stack = ReversibleSequential(*blocks)
    twin = plain_twin(stack)
    x = series(dims, channels=8, dtype=torch.float32)
    for model in (stack, twin):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.float().square().sum().backward()
    assert set(seen) == {torch.bfloat16}
    assert_same_gradients(stack, twin, 2e-2)


@all_dims
def test_a_forward_outside_autocast_is_not_run_again_inside_it(dims):
    stack = make_stack(dims).float()
    twin = plain_twin(stack)
    x = series(dims, dtype=torch.float32)
    for model in (stack, twin):
        y = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            y.square().sum().backward()
    assert_same_gradients(stack, twin, 1e-3)


@all_dims
def test_a_stack_in_a_function_of_a_stack(dims):
    inner = ReversibleSequential(
        AdditiveCoupling(function(dims, 2)), AdditiveCoupling(function(dims, 2))
    )
    stack = ReversibleSequential(
        AdditiveCoupling(inner, function(dims, 4)), AdditiveCoupling(function(dims, 4))
    ).double()
    twin = plain_twin(stack)
    twin.blocks[0].Fm = Plain(list(twin.blocks[0].Fm))
    assert_same_step(stack, twin, series(dims, channels=8))


@all_dims
def test_a_stack_as_a_block_of_a_stack(dims):
    stack = ReversibleSequential(make_stack(dims), *make_stack(dims))
    twin = plain_twin([*stack[0], *stack[1:]])
    assert_same_step(stack, twin, series(dims))


@all_dims
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_stack_inside_checkpoint(dims, use_reentrant):
    stack = make_stack(dims, dropout=0.2, norm=False)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack = stack

        def forward(self, x):
            return checkpoint(self.stack, x, use_reentrant=use_reentrant)

    assert_same_step(Checkpointed(), plain_twin(stack), series(dims))


@all_dims
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_inside_a_stack(dims, use_reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = function(dims, 3, dropout=0.2, norm=False)

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=use_reentrant)

    stack = ReversibleSequential(*(AdditiveCoupling(Checkpointed()) for _ in range(2))).double()
    twin = Plain(
        [AdditiveCoupling(copy.deepcopy(b.Fm.inner), copy.deepcopy(b.Gm.inner)) for b in stack]
    )
    x = series(dims)
    for model in (stack, twin):
        leaf = x.clone().requires_grad_()
        torch.manual_seed(0)
        model(leaf).square().sum().backward()
    for a, b in zip(stack.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-10)


@all_dims
def test_odd_channels_split_unevenly(dims):
    stack = ReversibleSequential(
        *(AdditiveCoupling(function(dims, 3, 4), function(dims, 4, 3)) for _ in range(2))
    ).double()
    x = series(dims, channels=7)
    assert_same_step(stack, plain_twin(stack), x)
    stack.eval()
    torch.testing.assert_close(stack.inverse(stack(x)), x, rtol=1e-10, atol=1e-10)


@all_dims
@pytest.mark.parametrize("batch", [0, 1])
def test_small_batches(dims, batch):
    stack = make_stack(dims, norm=False)
    assert_same_step(stack, plain_twin(stack), series(dims, batch=batch))


@pytest.mark.parametrize(
    ("dims", "memory_format"), [(2, torch.channels_last), (3, torch.channels_last_3d)]
)
def test_channels_last_is_kept(dims, memory_format):
    stack = make_stack(dims, norm=False).to(memory_format=memory_format)
    x = series(dims).contiguous(memory_format=memory_format).requires_grad_()
    y = stack(x)
    assert y.is_contiguous(memory_format=memory_format)
    y.square().sum().backward()
    twin = plain_twin(stack)
    twin.zero_grad()
    twin(x.detach()).square().sum().backward()
    assert_same_gradients(stack, twin)


@pytest.mark.parametrize("split_dim", [0, 1, 2, -1])
def test_splits_along_any_dimension(split_dim):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

        def forward(self, x):
            return torch.tanh(self.w * x)

    stack = ReversibleSequential(
        *(AdditiveCoupling(Scale(), Scale(), split_dim=split_dim) for _ in range(3))
    )
    assert_same_step(stack, plain_twin(stack), torch.randn(4, 6, 8, dtype=torch.float64))


def test_copies_pickles_and_state_dicts_are_whole():
    stack = make_stack(2)
    x = series(2)
    stack(x).sum().backward()
    for other in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))):
        assert_same_step(other, plain_twin(other), x)
    fresh = make_stack(2)
    fresh.load_state_dict(stack.state_dict())
    torch.testing.assert_close(fresh.eval()(x), stack.eval()(x))


def test_an_error_in_the_backward_leaves_no_state_behind():
    class Fragile(nn.Module):
        broken = False

        def __init__(self):
            super().__init__()
            self.inner = function(2, 3, dropout=0.3)

        def forward(self, x):
            x = self.inner(x)
            if self.broken:
                raise OSError("out of luck")
            return x

    stack = ReversibleSequential(*(AdditiveCoupling(Fragile()) for _ in range(2))).double()
    twin = plain_twin(stack)
    x = series(2)
    torch.manual_seed(0)
    y = stack(x)
    Fragile.broken = True
    before = torch.get_rng_state()
    with pytest.raises(OSError, match="out of luck"):
        y.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(m.training for m in stack.modules())
    Fragile.broken = False
    stack.zero_grad()
    torch.manual_seed(0)
    twin(x)
    assert_same_step(stack, twin, x)
    y.square().sum().backward()  # the first graph still works


def test_two_threads_train_two_models():
    stacks = [make_stack(2, depth=4) for _ in range(2)]
    twins = [plain_twin(s) for s in stacks]
    x = series(2)
    errors = []

    def train(model):
        try:
            for _ in range(20):
                model(x).square().sum().backward()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(s,)) for s in stacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for stack, twin in zip(stacks, twins, strict=True):
        train(twin)
        assert_same_gradients(stack, twin, 1e-8)


# torch's own, of tensors with a graph that enter the code after a graph break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_functions_and_a_compiled_whole_give_the_same_gradients():
    stack = make_stack(2, depth=2)
    twin = plain_twin(stack)
    x = series(2)
    twin(x).square().sum().backward()
    whole = copy.deepcopy(stack)
    torch.compile(whole, backend="aot_eager")(x).square().sum().backward()
    assert_same_gradients(whole, twin, 1e-8)
    for block in stack:
        block.Fm = torch.compile(block.Fm, backend="aot_eager")
        block.Gm = torch.compile(block.Gm, backend="aot_eager")
    stack(x).square().sum().backward()
    for a, b in zip(stack.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-8)


class Widening(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 1)

    def forward(self, x):
        return self.conv(x)


@pytest.mark.parametrize(
    ("make", "x", "message"),
    [
        (
            lambda: ReversibleSequential(AdditiveCoupling(Widening())),
            torch.zeros(1, 6, 2, 2),
            r"block 0.Fm must return the shape .*\(1, 3, 2, 2\), not \(1, 5, 2, 2\)",
        ),
        (
            lambda: ReversibleSequential(AdditiveCoupling(nn.Identity()), nn.Conv2d(6, 6, 1)),
            None,
            r"block 1 \(a Conv2d\) has no `inverse`",
        ),
        (
            lambda: ReversibleSequential(AdditiveCoupling(nn.Identity(), split_dim=4)),
            torch.zeros(1, 6, 2, 2),
            r"`split_dim` \(=4\)",
        ),
        (
            lambda: ReversibleSequential(AdditiveCoupling(nn.Identity())),
            torch.zeros(3, 1, 2, 2),
            r"`split_dim` \(=1\) has size 1",
        ),
    ],
)
def test_invalid_use_is_a_valueerror_that_names_it(make, x, message):
    with pytest.raises(ValueError, match=message):
        make()(x)


def test_a_parameter_changed_before_the_backward_is_an_error():
    stack = make_stack(2)
    y = stack(series(2))
    with torch.no_grad():
        stack[1].Gm[2].weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"`weight` of block 1\.Gm .* changed in place"):
        y.sum().backward()


def test_an_illegal_in_place_operation_is_an_error_as_in_torch():
    class Illegal(nn.Module):
        def forward(self, x):
            y = torch.sigmoid(x)
            z = y * 2
            y.mul_(3)
            return z

    stack = ReversibleSequential(AdditiveCoupling(Illegal()))
    x = torch.randn(1, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="in-place"):
        stack(x).sum().backward()


def test_a_function_that_differs_when_run_again_is_an_error():
    class Fickle(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return torch.tanh(x) if self.calls == 1 else torch.tanh(torch.exp(x))

    stack = ReversibleSequential(AdditiveCoupling(Fickle(), nn.Identity()))
    with pytest.raises(RuntimeError, match="must do the same both times"):
        stack(torch.randn(1, 4, requires_grad=True)).sum().backward()


def test_functional_call_uses_the_given_parameters_both_times():
    stack = make_stack(2)
    given = {n: (p * 1.5).detach().requires_grad_() for n, p in stack.named_parameters()}
    twin = copy.deepcopy(stack)
    twin.load_state_dict(given, strict=False)
    x = series(2)
    torch.func.functional_call(stack, given, x).square().sum().backward()
    plain = plain_twin(twin)
    plain(x).square().sum().backward()
    for ours, theirs in zip(given.values(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-10)


def test_spectral_norm_iterates_once_a_step():
    stack = ReversibleSequential(
        *(
            AdditiveCoupling(
                nn.Sequential(
                    torch.nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 3, 3, padding=1)),
                    nn.ReLU(),
                )
            )
            for _ in range(2)
        )
    ).double()
    twin = plain_twin(stack)
    for _ in range(3):
        stack.zero_grad()
        twin.zero_grad()
        assert_same_step(stack, twin, series(2))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weight_norm_by_hook_is_computed_again():
    stack = make_stack(2, norm=False)
    for block in stack:
        torch.nn.utils.weight_norm(block.Fm[1])
    twin = make_stack(2, norm=False)
    for block in twin:
        torch.nn.utils.weight_norm(block.Fm[1])
    twin.load_state_dict(stack.state_dict())
    assert_same_step(stack, Plain(list(twin)), series(2))


def test_general_modules_multiple_tensors_and_reshaping_in_one_stack():
    class Swap(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(1.3, dtype=torch.float64))

        def forward(self, a, b):
            return b, a * self.w

        def inverse(self, a, b):
            return b / self.w, a

    stack = ReversibleSequential(Swap(), Swap(), Swap())
    a, b = (torch.randn(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    out = stack(a, b)
    plain = (a, b)
    for block in stack:
        plain = block(*plain)
    inputs = [a, b, *stack.parameters()]
    ours = torch.autograd.grad((out[0] * out[1]).sum() + out[0].square().sum(), inputs)
    theirs = torch.autograd.grad((plain[0] * plain[1]).sum() + plain[0].square().sum(), inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(stack.inverse(*out), (a, b))


def test_whole_stages_with_downsampling_run_in_one_stack():
    blocks = [AdditiveCoupling(function(2, 3)), Squeeze2d(), AdditiveCoupling(function(2, 12))]
    stack = ReversibleSequential(*blocks).double()
    x = series(2, size=4)
    twin = nn.ModuleList(copy.deepcopy(blocks)).double()

    class Twin(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = twin

        def forward(self, x):
            return Plain([twin[2]])(twin[1](Plain([twin[0]])(x)))

    assert_same_step(stack, Twin(), x)


def test_activations_do_not_grow_with_depth(monkeypatch):
    from leanconv.measure import measure_memory

    def peak(depth):
        stack = make_stack(2, depth=depth, half=8).float()
        x = series(2, batch=4, channels=16, size=16, dtype=torch.float32)
        sample = measure_memory(lambda: stack(x).sum().backward(), model=stack).peak
        return sample.activations_bytes + sample.temporary_bytes

    assert peak(24) - peak(4) < 20 * 2000  # bytes a block that are no activations


def test_each_step_is_rebuilt_once_a_backward(monkeypatch):
    counted = rebuilds(monkeypatch)
    stack = make_stack(2)
    y = stack(series(2))
    y.sum().backward(retain_graph=True)
    assert len(counted) == len(set(counted)) == 6
    y.sum().backward()
    assert len(counted) == 12


def test_a_wrapper_among_the_blocks_is_seen_through(monkeypatch):
    stack = ReversibleSequential(
        InvertibleModuleWrapper(AdditiveCoupling(function(2, 3))),
        AdditiveCoupling(function(2, 3)),
    ).double()
    twin = Plain(copy.deepcopy([stack[0]._fn, stack[1]]))
    assert_same_step(stack, twin, series(2))
