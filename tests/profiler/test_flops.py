import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import leanconv
from leanconv.measure import MachineLimits
from leanconv.profiler.flops import Call, work_of
from leanconv.profiler.recorder import Schedule, record

LIMITS = MachineLimits("here", 1, "2", 1e9, 1e9, 2e9)


def counted_by_hand(batch, channels_in, channels_out, groups, out, kernel):
    """Two operations for each output element, input channel of its group and tap."""
    total = 0
    for _ in range(batch * channels_out):
        total += out * (channels_in // groups) * kernel * 2
    return total


def rows_of(step, limits=LIMITS):
    with record(schedule=Schedule(0, 1, 1, 0), limits=limits) as r:
        for _ in range(2):
            step()
            r.step()
    return r.profile, {(row.name, row.phase): row for row in r.profile.operators}


def gradients(grad_output, input, weight, mask, transposed=False, groups=1):
    dims = len(input) - 2
    empty = [[]] * 8
    values = [None] * 3 + [None, [1] * dims, [0] * dims, [1] * dims, transposed, [0] * dims, groups]
    call = Call("aten::convolution_backward", [grad_output, input, weight, *empty], [*values, mask])
    return work_of(call)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_every_direction_equals_a_hand_count(dims, groups):
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](8, 16, 3, groups=groups, bias=False)
    x = torch.ones(2, 8, *[6] * dims, requires_grad=True)
    by_hand = counted_by_hand(2, 8, 16, groups, 4**dims, 3**dims)
    profile, rows = rows_of(lambda: conv(x).sum().backward())
    assert rows["aten::convolution", "forward"].flops == by_hand
    assert rows["aten::convolution_backward", "backward"].flops == 2 * by_hand
    assert profile.step_flops == 3 * by_hand


def test_torchs_counter_is_off_by_the_groups_in_the_weight_gradient_and_ours_is_not():
    groups = 8
    conv = nn.Conv2d(8, 16, 3, groups=groups, bias=False)
    x = torch.ones(2, 8, 6, 6)  # wants no gradient, so that the weight's is the whole backward
    by_hand = counted_by_hand(2, 8, 16, groups, 16, 9)
    with FlopCounterMode(display=False) as counter:
        conv(x).sum().backward()
    theirs = counter.get_flop_counts()["Global"][torch.ops.aten.convolution_backward]
    _, rows = rows_of(lambda: conv(x).sum().backward())
    assert rows["aten::convolution_backward", "backward"].flops == by_hand
    assert theirs == groups * by_hand


def test_only_the_gradients_asked_for_are_counted():
    x, w, dy = (2, 8, 6, 6), (16, 4, 3, 3), (2, 16, 4, 4)
    one = counted_by_hand(2, 8, 16, 2, 16, 9)
    assert gradients(dy, x, w, [True, False, False], groups=2).flops == one
    assert gradients(dy, x, w, [False, True, False], groups=2).flops == one
    assert gradients(dy, x, w, [True, True, True], groups=2).flops == 2 * one + 2 * 16 * 16
    assert gradients(dy, x, w, [False, False, False]).flops == 0


@pytest.mark.parametrize("groups", [1, 4])
def test_transposed_convolutions_equal_a_hand_count(groups):
    conv = nn.ConvTranspose2d(4, 8, 3, stride=2, groups=groups, bias=False)
    x = torch.ones(2, 4, 5, 5, requires_grad=True)
    by_hand = 2 * 2 * 4 * 25 * (8 // groups) * 9  # each input element meets each of its taps
    profile, rows = rows_of(lambda: conv(x).sum().backward())
    forward = rows["aten::convolution", "forward"]
    assert forward.flops == by_hand
    assert profile.step_flops == 3 * by_hand
    assert forward.bytes == 4 * (x.numel() + conv.weight.numel() + 2 * 8 * 11 * 11)


def test_our_own_operators_equal_a_hand_count():
    conv = leanconv.Conv2d(8, 8, 3, groups=8, bias=False)
    x = torch.ones(2, 8, 6, 6, requires_grad=True)
    by_hand = counted_by_hand(2, 8, 8, 8, 16, 9)
    _, rows = rows_of(lambda: conv(x).sum().backward())
    for name, phase in (("forward", "forward"), ("grad_input", "backward")):
        assert rows[f"leanconv::conv_{name}", phase].flops == by_hand
    assert rows["leanconv::conv_grad_weight", "backward"].flops == by_hand


def test_separable_layers_equal_a_hand_count():
    layer = leanconv.SeparableConv2d(8, 4, 3, bias=False)
    x = torch.ones(2, 8, 6, 6, requires_grad=True)
    depthwise = counted_by_hand(2, 8, 8, 8, 16, 9)
    pointwise = counted_by_hand(2, 8, 4, 1, 16, 1)
    _, rows = rows_of(lambda: layer(x).sum().backward())
    forward = rows["leanconv::separable_forward", "forward"]
    assert forward.flops == depthwise + pointwise
    weights = sum(p.numel() for p in layer.parameters())
    assert forward.bytes == 4 * (x.numel() + weights + 2 * 4 * 16)
    backward = rows["leanconv::separable_backward", "backward"]
    assert backward.flops == 3 * depthwise + 2 * pointwise  # the intermediate is made again


def test_kernels_inside_an_operator_have_its_count_but_are_not_added_to_it():
    conv, x = nn.Conv2d(8, 8, 3, bias=False), torch.ones(1, 8, 6, 6)
    by_hand = counted_by_hand(1, 8, 8, 1, 16, 9)
    profile, rows = rows_of(lambda: conv(x))
    inner = [row for (name, _), row in rows.items() if "conv" in name]
    assert {row.flops for row in inner} == {by_hand}
    assert profile.step_flops == by_hand


def test_matrix_products_come_from_torchs_formulas():
    layer, x = nn.Linear(3, 5), torch.ones(7, 3)
    _, rows = rows_of(lambda: layer(x))
    assert rows["aten::addmm", "forward"].flops == 2 * 7 * 3 * 5
    assert rows["aten::linear", "forward"].flops == 2 * 7 * 3 * 5
    assert rows["aten::addmm", "forward"].bytes == 4 * (5 + 21 + 15 + 35)


def test_bytes_follow_the_type():
    conv, x = nn.Conv2d(2, 2, 1, bias=False), torch.ones(1, 2, 4, 4)
    call = Call(
        "aten::convolution",
        [x.shape, conv.weight.shape, *[[]] * 7],
        [None, None, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1],
    )
    whole = work_of(call)
    half = work_of(Call(call.name, call.shapes, call.values, 2))
    assert (whole.flops, whole.bytes) == (2 * 2 * 2 * 16, 4 * (32 + 4 + 32))
    assert (half.flops, half.bytes, half.low_precision) == (whole.flops, whole.bytes // 2, True)


def test_the_share_of_the_limit_is_least_time_over_time_taken():
    conv, x = nn.Conv2d(8, 8, 3, bias=False), torch.ones(1, 8, 6, 6)
    _, rows = rows_of(lambda: conv(x))
    row = rows["aten::convolution", "forward"]
    least = max(row.flops / 1e9, row.bytes / 1e9)
    assert row.limit_share == pytest.approx(least / row.total_cpu_seconds)
    _, rows = rows_of(lambda: conv(x), limits=None)
    assert rows["aten::convolution", "forward"].limit_share == 0


@pytest.mark.parametrize("name", ["aten::nothing", "mine::relu", "relu", "aten::convolution"])
def test_what_is_unknown_counts_nothing(name):
    assert work_of(Call(name, [[1, 2]], [None])) is None
