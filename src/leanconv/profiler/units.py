"""How quantities are written for people. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_RATES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return (
        f"{value:.0f}"
        if magnitude >= 99.95
        else f"{value:.1f}"
        if magnitude >= 9.995
        else f"{value:.2f}"
    )


def format_seconds(seconds: float) -> str:
    """Three digits and a unit: `1.25 ms`."""
    if seconds == 0:
        return "0 s"
    scale, unit = next((t for t in _TIMES if abs(seconds) >= t[0]), _TIMES[-1])
    return f"{_three_digits(seconds / scale)} {unit}"


def format_bytes(size: float) -> str:
    """Three digits and a binary unit: `3.00 MiB`."""
    scale, unit = next((s for s in _SIZES if abs(size) >= s[0]), _SIZES[-1])
    return f"{size:.0f} B" if scale == 1 else f"{_three_digits(size / scale)} {unit}"


def format_rate(value: float, unit: str) -> str:
    """Three digits, a decimal prefix and the unit: `41.2 GB/s`."""
    scale, prefix = next((r for r in _RATES if abs(value) >= r[0]), _RATES[-1])
    return f"{_three_digits(value / scale)} {prefix}{unit}"


def format_count(value: float) -> str:
    """Three digits and a decimal prefix: `41.2 G`."""
    return format_rate(value, "").rstrip()


def format_share(share: float) -> str:
    """A share of 1 in percent: `12.3%`."""
    return f"{share:.1%}"


def format_shape(shape: Sequence[int]) -> str:
    """`32x3x32x32`."""
    return "x".join(map(str, shape))
