"""What a table of a profile can show: its groupings, and the columns of each. Imports no torch.

Rules: a grouping has a key for each column, and the same keys choose columns, sort, and head the
tables of text, Markdown and HTML alike. Operators are summed over the profiled steps; modules and
lines are a step's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leanconv.profiler.units import format_bytes, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from leanconv.profiler.result import Profile

Row = Any  # an OperatorRow, a ModuleRow or a LineRow


@dataclass(frozen=True)
class Column:
    """One column: how a row's value is got, divided by the steps or not, and written."""

    heading: str
    value: Callable[[Row], Any]
    write: Callable[[Any], str] = str
    a_step: bool = False
    sums: bool = False

    def of(self, row: Row, steps: int) -> Any:
        """The row's value."""
        value = self.value(row)
        return value / max(1, steps) if self.a_step else value

    def of_all(self, rows: Sequence[Row], steps: int) -> Any:
        """The sum of several rows' values; None where they overlap and have none."""
        return sum(self.of(row, steps) for row in rows) if self.sums else None

    @property
    def is_text(self) -> bool:
        """Whether it is aligned left, and sorts from A."""
        return self.heading in ("phase", "kind", "text")


@dataclass(frozen=True)
class Grouping:
    """One way to group a profile's time into rows."""

    title: str
    name: str
    rows: Callable[[Profile], Sequence[Row]]
    label: Callable[[Row], str]
    columns: dict[str, Column]
    shown: tuple[str, ...]
    sort: str

    def sorted_rows(self, profile: Profile, key: str = "") -> list[Row]:
        """The rows, the largest first, or from A to Z by a column of text or by `name`."""
        rows = list(self.rows(profile))
        key = key or self.sort
        if key == "name":
            return sorted(rows, key=self.label)
        column = self.columns[key]
        return sorted(rows, key=column.value, reverse=not column.is_text)


def _count(value: float) -> str:
    return format_count(value) if value else "-"


def _size(value: float) -> str:
    return format_bytes(value) if value else "-"


def _limit(value: float) -> str:
    return format_share(value) if value else "-"


OPERATORS = Grouping(
    title="Operators",
    name="operator",
    rows=lambda profile: profile.operators,
    label=lambda row: str(row.name),
    columns={
        "phase": Column("phase", lambda r: r.phase),
        "self%": Column("self %", lambda r: r.self_cpu_share, format_share, sums=True),
        "self": Column("self", lambda r: r.self_cpu_seconds, format_seconds, sums=True),
        "total": Column("total", lambda r: r.total_cpu_seconds, format_seconds),
        "average": Column("average", lambda r: r.mean_cpu_seconds, format_seconds),
        "device": Column("device", lambda r: r.self_device_seconds, format_seconds, sums=True),
        "calls": Column("calls", lambda r: r.calls, sums=True),
        "flops": Column("FLOPs", lambda r: r.flops, _count),
        "bytes": Column("bytes", lambda r: r.bytes, _size),
        "limit": Column("of limit", lambda r: r.limit_share, _limit),
    },
    shown=("phase", "self%", "self", "total", "average", "calls"),
    sort="self",
)
_TIMES = {
    "self%": Column("self %", lambda r: r.self_share, format_share, sums=True),
    "self": Column("self", lambda r: r.self_seconds, format_seconds, True, sums=True),
    "total": Column("total", lambda r: r.total_seconds, format_seconds, True),
    "forward": Column("fwd", lambda r: r.forward_seconds, format_seconds, True),
    "recompute": Column("recomp.", lambda r: r.recompute_seconds, format_seconds, True),
    "backward": Column("bwd", lambda r: r.backward_seconds, format_seconds, True),
    "calls": Column("calls", lambda r: r.calls, sums=True),
}
_SHOWN = ("self%", "self", "total", "forward", "recompute", "backward")
MODULES = Grouping(
    title="Modules",
    name="module",
    rows=lambda profile: profile.modules,
    label=lambda row: str(row.path),
    columns={"kind": Column("kind", lambda r: r.kind), **_TIMES},
    shown=_SHOWN,
    sort="total",
)
LINES = Grouping(
    title="Lines of source",
    name="line",
    rows=lambda profile: profile.lines,
    label=lambda row: str(row.source),
    columns={"text": Column("text", lambda r: r.text), **_TIMES},
    shown=_SHOWN,
    sort="self",
)
GROUPINGS = {grouping.name: grouping for grouping in (OPERATORS, MODULES, LINES)}


@dataclass(frozen=True)
class View:
    """What a table shows of a profile.

    Args:
        group_by: "operator", "module" or "line"; empty for all three tables.
        sort: a column's key, or "name"; empty for each table's own.
        top: how many rows; the others are summed up in one.
        columns: keys of the columns; empty for each table's own.
    """

    group_by: str = ""
    sort: str = ""
    top: int = 15
    columns: tuple[str, ...] = ()

    def groupings(self) -> list[Grouping]:
        """The tables to show."""
        return [GROUPINGS[self.group_by]] if self.group_by else list(GROUPINGS.values())

    def sort_of(self, grouping: Grouping) -> str:
        """The key that a grouping is sorted by."""
        known = self.sort == "name" or self.sort in grouping.columns
        return self.sort if known else grouping.sort

    def columns_of(self, grouping: Grouping) -> list[Column]:
        """The columns that a grouping shows: those asked for that it has, or its own."""
        keys = [key for key in self.columns if key in grouping.columns] or grouping.shown
        return [grouping.columns[key] for key in keys]

    def why_not(self) -> list[str]:
        """What of it no table has; empty means that all is well."""
        tables = self.groupings()
        known = list(dict.fromkeys(key for table in tables for key in table.columns))
        said = f"one of {', '.join(known)}"
        wrong = [f"`columns` (={key}) must be {said}" for key in self.columns if key not in known]
        if self.sort and self.sort not in (*known, "name"):
            wrong.append(f"`sort` (={self.sort}) must be name or {said}")
        return wrong
