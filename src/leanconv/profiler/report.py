"""The record that reports are made from: text, HTML and JSON alike. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leanconv.measure.record import from_data, record, to_data

if TYPE_CHECKING:
    from leanconv.measure import Circumstances, Comparison, MachineLimits
    from leanconv.profiler.result import Profile

SCHEMA_VERSION = 3


@record
@dataclass(frozen=True)
class Training:
    """A short training run: the loss of each step, and accuracy (0 to 1) on data it never saw."""

    name: str
    losses: tuple[float, ...]
    seconds: float
    batch_size: int
    accuracy: float
    data: str


@record
@dataclass(frozen=True)
class Report:
    """Everything measured in one run."""

    title: str
    circumstances: Circumstances
    trainings: tuple[Training, ...] = ()
    profiles: tuple[Profile, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    limits: MachineLimits | None = None

    def to_json(self) -> str:
        """The report as JSON, with `schema_version` beside it."""
        data = {"schema_version": SCHEMA_VERSION, **to_data(self)}
        return json.dumps(data, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of `to_json`.

        Raises:
            ValueError: if the text is no report, or one of another schema version.
        """
        data = json.loads(text)
        version = data.pop("schema_version", None) if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"a report of schema version {version} cannot be read; this is {SCHEMA_VERSION}"
            )
        report = from_data(data)
        if not isinstance(report, cls):
            raise ValueError("the file holds no report")
        return report

    def write_json(self, path: Path | str) -> None:
        """Write `to_json()` to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")
