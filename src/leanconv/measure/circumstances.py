"""What a measurement was taken on: processor, threads, versions, load."""

from __future__ import annotations

import datetime
import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from leanconv.measure.record import record


@record
@dataclass(frozen=True)
class Circumstances:
    """The machine, versions and load beside every result.

    `load_average` is the system's over the last minute, `-1` where there is none; `cores` are those
    this process may use.
    """

    processor: str
    accelerator: str
    cores: int
    threads: int
    cpu_capability: str
    load_average: float
    memory_bytes: int
    system: str
    python: str
    torch: str
    leanconv: str
    taken_at: str

    @classmethod
    def now(cls) -> Circumstances:
        """The circumstances at this moment."""
        from leanconv import __version__

        return cls(
            processor=processor_name(),
            accelerator=accelerator_name(),
            cores=available_cores(),
            threads=torch.get_num_threads(),
            cpu_capability=torch.backends.cpu.get_cpu_capability(),
            load_average=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else -1.0,
            memory_bytes=psutil.virtual_memory().total,
            system=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
            torch=torch.__version__,
            leanconv=__version__,
            taken_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )


@functools.cache
def processor_name() -> str:
    """The CPU's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def accelerator_name() -> str:
    """The current GPU's name, or `none`."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def available_cores() -> int:
    """How many cores this process may use, which in a container is fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
