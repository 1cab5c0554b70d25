"""The numbers that steer the router. Pure data; settings.py fills it in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weights:
    """What each score, 0 to 1, counts for. An engine's score is the weighted sum.

    `holder` is larger than all others of the decode leg together, so that the engine that
    holds the session comes first.
    """

    holder: float = 8.0
    in_flight: float = 4.0
    waiting: float = 2.0
    room: float = 1.0


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Bounds of the router, and durations in seconds.

    Attributes:
        min_pull_tokens: Retentions that hold fewer tokens are not worth a transfer.
        retention_wait: The longest that a decision waits for an engine's report of the
            session's last turn.
        retention_expected: How long after the end of a turn its report is still expected.
        decision_ttl: How long a turn is counted without a report of its legs. Longer than
            any stream may live: what is dropped too early lets engines be overcommitted.
        max_in_flight: Turns counted at once; more are refused as saturated.
        memory: Entries of each bounded memory of small things: ended leases, messages.
        answers: Decisions remembered for repeated request ids.
        restart_grace: How long what a restarted plane has not heard of yet is kept, and for how
            long after its start a router takes missing engines for late ones.
        retry_after: After how long callers are told to retry.
        weights: See `Weights`.

    """

    min_pull_tokens: int = 64
    retention_wait: float = 0.025
    retention_expected: float = 1.0
    decision_ttl: float = 6 * 3600.0
    max_in_flight: int = 100_000
    memory: int = 50_000
    answers: int = 4_096
    restart_grace: float = 15.0
    retry_after: float = 1.0
    weights: Weights = Weights()
