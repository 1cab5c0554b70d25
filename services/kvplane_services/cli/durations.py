"""Durations as people write and read them."""

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h|d)?")


def parse_duration(text: str) -> float:
    """Seconds of a duration such as "90", "90s", "1.5m", "2h" or "500ms".

    Raises:
        ValueError: It is not a duration.

    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write for example 90s, 5m or 2h")
    return float(match["number"]) * _UNITS[match["unit"] or "s"]


def show_duration(seconds: float) -> str:
    """A duration in its two largest units: "85 ms", "12.4 s", "3m 20s", "2h 5m", "4d 1h"."""
    if seconds < 0:
        return f"-{show_duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    # Rounded before the unit is chosen, so that 59.99 s is a minute and not 60.0 s.
    if round(seconds, 1) < _UNITS["m"]:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for large, small in (("d", "h"), ("h", "m"), ("m", "s")):
        if whole >= _UNITS[large]:
            count, rest = divmod(whole, int(_UNITS[large]))
            return f"{count}{large} {rest // int(_UNITS[small])}{small}"
    return f"{whole} s"
