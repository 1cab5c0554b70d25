"""The benchmark's results: rates and their spread, as JSON and as a table."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

# So many parts a phase is cut into, to see how even it went.
_SLICES = 10


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of several measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


def rates(counts: Sequence[tuple[float, int]], *, began: float, before: int) -> Spread:
    """How many per second, from (time, count so far) in order, in ten parts of the same count."""
    cut: list[float] = []
    at, counted = began, before
    share = (counts[-1][1] - before) / _SLICES
    for time, count in counts:
        if count - counted >= share and time > at:
            cut.append((count - counted) / (time - at))
            at, counted = time, count
    if not cut:
        cut.append((counts[-1][1] - before) / max(counts[-1][0] - began, 1e-6))
    return Spread.of(cut)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def as_table(document: Mapping[str, Any], *, aims: Mapping[str, str]) -> Table:
    """The figures for people."""
    table = Table(show_edge=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("median", justify="right")
    table.add_column("from", justify="right")
    table.add_column("to", justify="right")
    table.add_column("aim", no_wrap=True)
    spread: Mapping[str, Any] = document["spread"]
    for name, value in document.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            ends = spread.get(name, {})
            low, high = (_number(ends[end]) if ends else "" for end in ("low", "high"))
            table.add_row(name, _number(value), low, high, aims.get(name, ""))
    return table


def rounded(value: float) -> float:
    """Four digits that count."""
    return float(f"{value:.4g}")


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 1000:  # noqa: PLR2004 - as people write numbers
        return f"{value:,.0f}"
    return f"{value:.4g}"
