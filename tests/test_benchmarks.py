from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPT = BENCHMARKS / "conv.py"


def test_the_convolution_benchmark_writes_a_row_a_direction_and_layout(tmp_path):
    file = tmp_path / "rows.json"
    options = ["--quick", "--only", "forum-dw7", "--dtype", "float32", "--json", str(file)]
    command = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "speedup, geometric mean" in done.stdout
    rows = json.loads(file.read_text())["rows"]
    assert {(row["direction"], row["layout"]) for row in rows} == {
        (direction, layout)
        for direction in ("forward", "grad_input", "grad_weight")
        for layout in ("contiguous", "channels_last")
    }


def load(monkeypatch, name):
    """A benchmark as a module, its folder on the path as for a script of it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    specification = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look it up
    specification.loader.exec_module(module)
    return module


def test_the_reversible_benchmark_says_which_peers_are_missing_and_measures_the_rest(monkeypatch):
    benchmark = load(monkeypatch, "reversible")
    rows = {row.side: row for row in benchmark.time_network("1d", 1, 1)}
    for side in ("keeps everything", "checkpoint", "leanconv"):
        assert not rows[side].why_missing, rows[side].why_missing
        assert rows[side].seconds > 0
    for peer in ("memcnn", "revlib"):
        if importlib.util.find_spec(peer) is None:
            assert "No module named" in rows[peer].why_missing
    benchmark.measure_peaks(rows["leanconv"], [1])
    assert rows["leanconv"].peak_bytes[1] > 0


def test_the_budget_benchmark_never_finds_more_held_than_allowed(monkeypatch):
    load(monkeypatch, "reversible")
    benchmark = load(monkeypatch, "memory_budget")
    rows = benchmark.measure("1d", 2, 1)
    assert len(rows) > 3
    assert [row.kept for row in rows] == sorted(row.kept for row in rows)
    for row in rows:
        assert 0 < row.held_bytes <= row.budget_bytes * 1.005
    assert len(benchmark.verdicts(rows)) == 3
