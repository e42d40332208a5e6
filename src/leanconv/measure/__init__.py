"""Honest measuring: a synchronised clock, paired comparison, memory, the machine's limits.

Rules: raw samples are kept; every result carries the circumstances it was taken in; what never
settled says so; nothing here knows of models, layers or reports.
"""

from leanconv.measure.circumstances import Circumstances
from leanconv.measure.clock import Measurement, measure, synchronize
from leanconv.measure.comparison import Comparison, compare
from leanconv.measure.limits import MachineLimits, copy_bytes_per_second, machine_limits
from leanconv.measure.memory import MemoryPeak, MemorySample, measure_memory
from leanconv.measure.record import from_data, to_data

__all__ = [
    "Circumstances",
    "Comparison",
    "MachineLimits",
    "Measurement",
    "MemoryPeak",
    "MemorySample",
    "compare",
    "copy_bytes_per_second",
    "from_data",
    "machine_limits",
    "measure",
    "measure_memory",
    "synchronize",
    "to_data",
]
