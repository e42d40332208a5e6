from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "conv.py"


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
