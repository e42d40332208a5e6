import io

import pytest
import torch
from rich.console import Console
from torch import nn

import leanconv
from leanconv.measure import MachineLimits
from leanconv.profiler.columns import GROUPINGS, MODULES, OPERATORS, View
from leanconv.profiler.text import print_profile


@pytest.fixture(scope="module")
def profile():
    limits = MachineLimits("here", 1, "2", 1e9, 1e9, 2e9)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU())
    data = [(torch.ones(2, 2, 8, 8), None)]
    return leanconv.profile(model, data, seconds=0.01, limits=limits)


def as_text(profile, view, width=80):
    console = Console(file=io.StringIO(), width=width)
    print_profile(profile, console, view)
    return console.file.getvalue()


@pytest.mark.parametrize("name", GROUPINGS)
def test_every_column_of_every_table_can_be_shown_and_sorted_by(profile, name):
    grouping = GROUPINGS[name]
    for key, column in grouping.columns.items():
        values = [column.value(row) for row in grouping.sorted_rows(profile, key)]
        assert values == sorted(values, reverse=not column.is_text)
        assert column.heading in as_text(profile, View(name, key, 3, (key,)))
    names = [grouping.label(row) for row in grouping.sorted_rows(profile, "name")]
    assert names == sorted(names)


def test_grouping_by_one_shows_that_table_only(profile):
    text = as_text(profile, View("module"))
    assert "Modules, a step" in text
    assert "Operators," not in text
    assert "Lines of source" not in text


def test_what_is_not_shown_is_summed_up(profile):
    text = as_text(profile, View("operator", top=1))
    assert f"({len(profile.operators) - 1} more)" in text
    column = OPERATORS.columns["calls"]
    assert column.of_all(profile.operators, 2) == sum(row.calls for row in profile.operators)
    assert OPERATORS.columns["total"].of_all(profile.operators, 2) is None


def test_flops_bytes_and_the_share_of_the_limit_are_columns(profile):
    text = as_text(profile, View("operator", "flops", 3, ("flops", "bytes", "limit")))
    assert "convolution" in text
    row = OPERATORS.sorted_rows(profile, "flops")[0]
    assert row.flops > 0
    assert row.limit_share > 0


def test_a_sort_that_a_table_lacks_leaves_its_own():
    assert View(sort="flops").sort_of(MODULES) == MODULES.sort
    assert View(sort="flops").sort_of(OPERATORS) == "flops"
    assert not View(sort="flops").why_not()
    assert View("module", "flops").why_not()
    assert View(columns=("nonsense",)).why_not()
