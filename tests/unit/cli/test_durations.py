"""Durations as people write and read them."""

import pytest

from kvplane_services.cli.durations import parse_duration, show_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0), ("500ms", 0.5), ("1d", 86400.0)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """A number stands for seconds unless a unit follows."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s", "1w", "1h30m", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Anything else raises, with an example of what is expected."""
    with pytest.raises(ValueError, match="90s, 5m or 2h"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.085, "85 ms"),
        (12.44, "12.4 s"),
        (59.99, "1m 0s"),
        (200, "3m 20s"),
        (3599.9, "1h 0m"),
        (7500, "2h 5m"),
        (86_399.9, "1d 0h"),
        (349_200, "4d 1h"),
        (-5, "-5.0 s"),
    ],
)
def test_durations_are_shown_in_two_units(seconds: float, text: str) -> None:
    """The two largest units are enough for people."""
    assert show_duration(seconds) == text
