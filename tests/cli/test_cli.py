import json
import os
import subprocess
import sys

import pytest
import torch

from leanconv.cli import main
from leanconv.profiler import Report

SMALL = ["--input", "2x3x32x32"]


@pytest.fixture
def targets(tmp_path):
    file = tmp_path / "nets.py"
    file.write_text(
        "import torch\n"
        "def good(): return torch.nn.Linear(4, 3)\n"
        "def bad(): raise RuntimeError('broken\\nbadly')\n"
        "def word(): return 'word'\n"
        "class Sharp(torch.nn.Module):\n"
        "    def forward(self, x): raise KeyError('sharp')\n"
        "thing = 3\n"
    )
    return file


def said(capsys, *arguments, code=0):
    assert main(list(arguments)) == code
    return capsys.readouterr()


def test_profile_prints_tables_of_80_columns(capsys):
    out = said(capsys, "profile", "separable_cifar", *SMALL, "--seconds", "0.1").out
    assert max(map(len, out.splitlines())) <= 80
    for word in ("forward", "aten::", "activations", "separable_cifar, input 2x3x32x32"):
        assert word in out


def test_profile_as_json_is_a_report(capsys, targets):
    out = said(
        capsys, "profile", f"{targets}:good", "--input", "2x4", "--seconds", "0.1", "--json"
    ).out
    report = Report.from_json(out)
    assert report.profiles[0].input_shape == (2, 4)


def test_profile_writes_html(capsys, targets, tmp_path):
    page = tmp_path / "page.html"
    said(
        capsys,
        "profile",
        f"{targets}:good",
        "--input",
        "2x4",
        "--seconds",
        "0.1",
        "--html",
        str(page),
    )
    assert page.read_text().startswith("<!doctype html>")


def test_profile_shows_the_table_and_columns_asked_for(capsys, targets):
    shown = ["--group-by", "operator", "--sort", "flops", "--columns", "flops,limit", "--top", "2"]
    target = [f"{targets}:good", "--input", "2x4", "--seconds", "0.1"]
    out = said(capsys, "profile", *target, *shown).out
    assert "by flops" in out
    assert "of limit" in out
    assert "Lines of source" not in out


def test_compare_gives_a_verdict(capsys, targets):
    out = said(
        capsys,
        "compare",
        f"{targets}:good",
        f"{targets}:good",
        "--input",
        "2x4",
        "--rounds",
        "10",
        "--self-check",
        "--json",
    ).out
    comparison = Report.from_json(out).comparisons[0]
    assert comparison.verdict in ("faster", "slower", "inconclusive")
    assert comparison.self_check is not None


def test_doctor_says_what_is_here(capsys):
    assert "Compiled kernels" in said(capsys, "doctor", "--no-limits").out
    data = json.loads(said(capsys, "doctor", "--no-limits", "--json").out)
    assert data["circumstances"]["torch"] == torch.__version__


@pytest.mark.parametrize("name", ["torchvision:squeezenet1_1", "timm:mobilenetv3_small_050"])
def test_models_of_other_libraries_are_targets(capsys, name):
    out = said(capsys, "profile", name, "--input", "1x3x64x64", "--seconds", "0.1", "--json").out
    assert Report.from_json(out).profiles[0].parameters > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["profile", "separable_cifr"], "did you mean separable_cifar"),
        (["profile", "nonsense"], "dense_cifar, irevnet1d, rev_separable, separable_cifar"),
        (["profile", "torchvision:resnet81"], "resnet18"),
        (["profile", "timm:resnet81"], "timm has no model"),
        (["profile", "separable_cifar", "--input", "32x3"], "shape 32x3"),
        (["profile", "separable_cifar", "--input", "3y4"], "`--input` (=3y4)"),
        (["profile", "separable_cifar", "--input", "0x3x32x32"], "`--input` (=0x3x32x32)"),
        (["profile", "separable_cifar", "--threads", "999"], "`--threads` (=999)"),
        (["profile", "separable_cifar", "--threads", "0"], "`--threads` (=0)"),
        (["profile", "no.such.place:f", "--input", "3"], "no.such.place cannot be imported"),
        (["profile", "no_file.py:f", "--input", "3"], "there is no file no_file.py"),
        (["profile", "NETS:bad", "--input", "2x4"], "raises when called: RuntimeError: broken"),
        (["profile", "NETS:word", "--input", "2x4"], "returns str"),
        (["profile", "NETS:goood", "--input", "2x4"], "did you mean good"),
        (["profile", "NETS:thing", "--input", "2x4"], "holds no function"),
        (["profile", "NETS:good"], "needs `--input`"),
        (["profile", "NETS:good", "--input", "2x5"], "does not train on an input of shape 2x5"),
        (["profile", "NETS:Sharp", "--input", "2x5"], "KeyError: 'sharp'"),
        (["profile", "dense_cifar", "--html", "/no/such/folder/x.html"], "no folder"),
        (["profile", "dense_cifar", "--columns", "self,nonsense"], "`--columns` (=nonsense)"),
        (["profile", "dense_cifar", "--sort", "nonsense"], "`--sort` (=nonsense)"),
        (["profile", "dense_cifar", "--group-by", "colour"], "'operator', 'module', 'line'"),
        (["compare", "dense_cifar"], "TARGET_B"),
        (["compare", "a", "b", "--rounds", "3"], "--rounds"),
        (["compare", "a", "b", "--threshold", "2"], "--threshold"),
        (["nonsense"], "No such command"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(capsys, targets, arguments, words):
    arguments = [word.replace("NETS", str(targets)) for word in arguments]
    streams = said(capsys, *arguments, code=2)
    assert words in streams.err
    assert streams.err.strip().count("\n") == 0
    assert "Traceback" not in streams.err
    assert not streams.out


def test_a_reader_that_goes_away_is_no_error():
    run = subprocess.run(
        f"{sys.executable} -m leanconv doctor --no-limits | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in run.stderr


def test_the_command_works_in_a_plain_locale():
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "leanconv",
            "profile",
            "separable_cifar",
            *SMALL,
            "--seconds",
            "0.1",
        ],
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == b"Profiling separable_cifar ...\n"
