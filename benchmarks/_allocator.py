"""Freed memory stays with the process, as in a training loop that has warmed up, so that no side's
time is the kernel's zeroing of fresh pages. glibc reads these settings at a process's start only.
"""

from __future__ import annotations

import os
import sys

KEEP_FREED = {f"MALLOC_{name}_THRESHOLD_": str(2**40) for name in ("MMAP", "TRIM")}


def keep_freed_memory() -> None:
    """Start this script again with the settings, where it lacks them."""
    if not KEEP_FREED.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_FREED})
