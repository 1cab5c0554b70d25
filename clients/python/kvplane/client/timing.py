"""Durations that the long-lived parts of the client go by, in seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """Durations of an `EngineLink`, in seconds.

    Raises:
        ValueError: They do not fit together.

    Attributes:
        registration_ttl: TTL to ask for; None for the plane's default.
        answer_timeout: How long to wait for one answer before the stream is given up.
        first_backoff: Longest wait after a first failure.
        longest_backoff: Longest wait ever. Bounds how late a plane that comes back is noticed.
        close_timeout: Longest that a clean stop waits for the plane.

    """

    registration_ttl: float | None = None
    answer_timeout: float = 5.0
    first_backoff: float = 0.3
    longest_backoff: float = 3.0
    close_timeout: float = 2.0

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class KeeperTiming:
    """Durations of a `LeaseKeeper`, in seconds.

    Raises:
        ValueError: They do not fit together.

    Attributes:
        margin: How long before the granted end the holder gives up.
        unanswered_ttl: Until when a lease may be used before its first renewal is answered.
        answer_timeout: How long to wait for one answer before the stream is given up.
        first_backoff: Longest wait after a first failure.
        longest_backoff: Longest wait ever.
        close_timeout: Longest that closing waits for the plane.

    """

    margin: float = 1.0
    unanswered_ttl: float = 10.0
    answer_timeout: float = 5.0
    first_backoff: float = 0.3
    longest_backoff: float = 3.0
    close_timeout: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.margin < self.unanswered_ttl:
            raise ValueError("margin must be at least 0 and less than unanswered_ttl")
        _check(self)


def _check(timing: LinkTiming | KeeperTiming) -> None:
    durations = (timing.answer_timeout, timing.first_backoff, timing.close_timeout)
    if min(durations) <= 0 or timing.longest_backoff < timing.first_backoff:
        raise ValueError("durations must be positive, and longest_backoff >= first_backoff")
