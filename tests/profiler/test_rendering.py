import ast
import io
import pathlib
from html.parser import HTMLParser

import pytest
import torch
from rich.console import Console
from torch import nn

import leanconv
from leanconv.measure import Circumstances
from leanconv.profiler import Report, Training
from leanconv.profiler.html import render_html, write_html
from leanconv.profiler.text import print_report

EVIL = '<script>alert("x")</script>\x1b[31m[red]'


@pytest.fixture(scope="module")
def report():
    comparison = leanconv.compare(
        lambda: sum(range(2000)),
        lambda: sum(range(1000)),
        labels=(EVIL, "b"),
        rounds=10,
        self_check=True,
    )
    training = Training(EVIL, (2.0, 1.0), 0.5, 8, 0.75, "digits")
    return Report(
        EVIL,
        Circumstances.now(),
        (training,),
        (leanconv.profile(nn.Linear(4, 3), [(torch.ones(2, 4), None)], seconds=0.01, name=EVIL),),
        (comparison,),
    )


def as_text(report, **options):
    console = Console(file=io.StringIO(), width=80, **options)
    print_report(report, console)
    return console.file.getvalue()


def test_text_is_plain_and_fits_80_columns(report):
    text = as_text(report)
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii()
    assert "\x1b" not in text


def test_text_names_everything_asked_for(report):
    text = as_text(report)
    for word in ("data", "forward", "backward", "optimizer", "activations", "self %", "calls"):
        assert word in text
    assert "[red]" in text


def test_html_is_one_file_without_scripts_or_network(report, tmp_path):
    write_html(report, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    tags = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.append(tag)
            assert not {"src", "href"} & {name for name, _ in attrs}

    Reader().feed(page)
    assert "script" not in tags
    assert "\x1b" not in page
    assert len(page) < 2_000_000
    assert tags.count("table") >= 5


def test_html_of_an_empty_report_renders():
    assert "<h1>empty</h1>" in render_html(Report("empty", Circumstances.now()))


def test_renderers_import_no_torch():
    folder = pathlib.Path(leanconv.__file__).parent / "profiler"
    for name in ("report.py", "text.py", "html.py", "units.py"):
        nodes = list(ast.walk(ast.parse((folder / name).read_text())))
        imported = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
        imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not any(name.split(".")[0] == "torch" for name in imported if name)
