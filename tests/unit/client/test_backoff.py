"""Waits between attempts."""

from kvplane.client.backoff import Backoff


def test_waits_double_up_to_the_bound() -> None:
    """The longest waits are 1, 2, 4, 8 of the first and never beyond the bound."""
    backoff = Backoff(first=0.5, longest=3.0, uniform=lambda _, high: high)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_waits_are_never_shorter_than_half() -> None:
    """Jitter takes at most half of a wait away."""
    backoff = Backoff(first=0.5, longest=3.0, uniform=lambda low, _: low)
    assert [backoff.next() for _ in range(3)] == [0.25, 0.5, 1.0]


def test_success_starts_over() -> None:
    """After a reset the waits begin anew."""
    backoff = Backoff(first=0.5, longest=3.0, uniform=lambda _, high: high)
    backoff.next()
    backoff.next()
    backoff.reset()
    assert backoff.next() == 0.5


def test_a_plane_away_for_months_does_not_overflow() -> None:
    """Ten thousand failures end at the bound."""
    backoff = Backoff(first=0.5, longest=3.0, uniform=lambda _, high: high)
    assert [backoff.next() for _ in range(10_000)][-1] == 3.0
