"""The direction of imports, and that the documented examples run."""

import ast
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import leanconv

PACKAGE = Path(leanconv.__file__).parent
ROOT = PACKAGE.parent.parent
# Each may import those after it, never those before.
ORDER = (
    "cli",
    "train",
    "profiler",
    "convert",
    "models",
    "layers",
    "separable_layers",
    "reversible",
    "tuning",
    "functional",
    "_separable",
    "_statistics",
    "_operators",
    "_checks",
    "dispatch",
    "backends",
    "measure",
    "_native",
    "errors",
)


def imports_of(file):
    # Imports inside functions and for type checking only are no part of the running order.
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("leanconv"):
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("leanconv."))


@pytest.mark.parametrize("part", ORDER)
def test_imports_go_one_way(part):
    folder = PACKAGE / part
    files = folder.rglob("*.py") if folder.is_dir() else [PACKAGE / f"{part}.py"]
    for file in files:
        if file.exists():
            for name in imports_of(file):
                if name in ORDER:
                    assert ORDER.index(name) >= ORDER.index(part), f"{file} imports {name}"


@pytest.mark.parametrize(
    "name",
    [
        m.name
        for m in pkgutil.walk_packages([str(PACKAGE)], "leanconv.")
        if not m.name.endswith(("__main__", "kernels"))
    ],
)
def test_examples_in_docstrings_run(name):
    names = {"leanconv": leanconv, "torch": torch}
    assert doctest.testmod(importlib.import_module(name), extraglobs=names).failed == 0


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=str)
def test_code_blocks_in_the_pages_run(page):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


def test_the_digits_example_runs_whole(tmp_path):
    run = subprocess.run(
        [
            sys.executable,
            ROOT / "examples" / "digits.py",
            "--out",
            tmp_path,
            "--steps",
            "1",
            "--seconds",
            "0.1",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert "Self-check:" in run.stdout
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "report.json").exists()
