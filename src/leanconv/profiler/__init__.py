"""Where a training step's time and memory go.

Rules: a pass for each question (time without any profiler, operators, memory), so that no figure
carries another's cost; times called the step's come from the pass without a profiler; percentages
of a column sum to 100, and what is attributed to nothing stands in a row that says so.
"""

from leanconv.profiler.profile import profile
from leanconv.profiler.recorder import Recorder, Schedule, record
from leanconv.profiler.report import Report, Training
from leanconv.profiler.result import Profile
from leanconv.profiler.step import TrainingStep

__all__ = [
    "Profile",
    "Recorder",
    "Report",
    "Schedule",
    "Training",
    "TrainingStep",
    "profile",
    "record",
]
