from __future__ import annotations

import json

import pytest

from leanconv import dispatch
from leanconv._choices import Choice
from leanconv.cli import main

NETS = """
import torch, leanconv
def separable():
    return torch.nn.Sequential(
        leanconv.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, groups=8)
    )
def linear(): return torch.nn.Linear(4, 4)
"""


@pytest.fixture
def nets(tmp_path):
    file = tmp_path / "tuned_nets.py"
    file.write_text(NETS)
    return str(file)


@pytest.fixture(autouse=True)
def fixed_times(monkeypatch):
    def trial(call, direction, candidates, budget):
        return {each.name: 1e-3 * (2 + n) for n, each in enumerate(candidates)}

    monkeypatch.setattr(dispatch._trial, "trial", trial)


def said(capsys, *arguments, code=0):
    assert main(["tune", *arguments]) == code
    return capsys.readouterr()


def test_tuning_names_every_layer_ours_or_torchs_in_80_columns(capsys, nets):
    out = said(capsys, f"{nets}:separable", "--input", "2x3x12x12").out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if not line.startswith(" ")] == ["0", "2"]
    assert sum(line.startswith("  forward") for line in lines) == 2
    assert len(dispatch.choices().all()) == 6


def test_explaining_a_layer_shows_all_candidates_times(capsys, nets):
    out = said(capsys, f"{nets}:separable", "--input", "2x3x12x12", "--explain", "2").out
    assert out.startswith("2\n")
    for word in ("aten ", "aten_relaid", "forward, 2x8x10x10 by 8x1x3x3", "groups 8", "ms"):
        assert word in out


def test_tuning_as_json_is_records_by_layer(capsys, nets):
    out = said(
        capsys, f"{nets}:separable", "--input", "2x3x12x12", "--json", "--layout",
        "channels_last", "--dtype", "bfloat16",
    ).out  # fmt: skip
    data = json.loads(out)
    assert set(data) == {"0", "2"}
    assert all("bfloat16" in each["key"] for each in data["2"])


def test_the_file_is_shown_exported_imported_merged_and_cleared(capsys, tmp_path):
    one, two = Choice("one", "aten", {"aten": 1.0}), Choice("two", "aten", {"aten": 1.0})
    file = str(tmp_path / "export.json")
    dispatch.choices().put([one])
    said(capsys, "--export", file)
    said(capsys, "--clear")
    assert dispatch.choices().all() == []
    dispatch.choices().put([two])
    assert "1 choices merged" in said(capsys, "--merge", file).out
    assert dispatch.choices().all() == [one, two]
    assert "1 choices imported" in said(capsys, "--import", file).out
    assert dispatch.choices().all() == [one]
    shown = said(capsys, "--show").out
    assert "1 choices in" in shown
    assert "one" in shown
    assert json.loads(said(capsys, "--show", "--json").out)[0]["key"] == "one"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a TARGET, or one of --show"),
        (["--explain", "2"], "`--explain` (=2) needs the TARGET"),
        (["--merge", "/no/such/file"], "cannot read /no/such/file: No such file"),
        (["--import", "NETS"], "is no export of choices: it is not JSON"),
        (["--merge", "OLD"], "has version 0; 1 is read here"),
        (["--merge", "ODD"], "is no export of choices"),
        (["--merge", "UNSOUND"], "holds a choice of no key, backend or times"),
        (["--export", "/no/such/folder/x"], "cannot write /no/such/folder/x"),
        (["--clear", "--import", "OLD"], "leave `--clear` out"),
        (["NETS:linear", "--input", "2x4"], "runs no convolution"),
        (["NETS:linear", "--input", "2x5"], "does not run: RuntimeError"),
        (["NETS:linear", "--input", "2x4", "--layout", "channels_last"], "2 dimensions"),
        (["NETS:separable", "--input", "2x3x9x9", "--explain", "7"], "must be one of the layers"),
        (["NETS:separable", "--input", "2x3x9x9", "--dtype", "int8"], "--dtype"),
        (["NETS:separable", "--seconds", "0"], "--seconds"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(capsys, nets, tmp_path, arguments, words):
    files = {
        "OLD": '{"version": 0, "choices": []}',
        "ODD": '{"version": 1, "choices": [{"key": 1}]}',
        "UNSOUND": '{"version": 1, "choices": [{"key": "k", "backend": "b", "seconds": {"c": 1}}]}',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    places = {name: str(tmp_path / name) for name in files} | {"NETS": nets}
    for name, place in places.items():
        arguments = [word.replace(name, place) for word in arguments]
    streams = said(capsys, *arguments, code=2)
    assert words in streams.err
    assert "Traceback" not in streams.err
    assert not streams.out
    assert all("leanconv" in line or "Tuning" in line for line in streams.err.splitlines())


def test_a_cache_that_cannot_be_used_is_a_sentence_too(capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with dispatch.using(cache=tmp_path / "file" / "choices.sqlite"):
        err = said(capsys, "--clear", code=2).err
    assert "cannot be used" in err
    assert err.count("\n") == 1


def test_a_damaged_cache_is_set_aside_with_one_line(capsys, tmp_path):
    (tmp_path / "damaged").write_bytes(b"no database at all" * 100)
    with dispatch.using(cache=tmp_path / "damaged"):
        streams = said(capsys, "--show")
    assert streams.out.startswith("0 choices in")
    assert streams.err.count("set aside") == 1
