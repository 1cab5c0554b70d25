"""Durations and bounds of leases."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """How long leases and claims last, and what is kept of ended ones; durations in seconds.

    A lease lives through two lost renewals: `renew_interval` is a third of `ttl` unless set, and
    never more than half of it. `grace` covers what the holder's and the plane's counts may
    differ: the plane calls a lease expired only after everybody else has.

    Raises:
        ValueError: The durations do not fit together.

    """

    # What an engine holds a retention for after a renewal.
    ttl: float = 30.0
    # How often engines and holders renew; 0 means ttl / 3.
    renew_interval: float = 0.0
    # How much later than its holder the plane calls a lease expired.
    grace: float = 5.0
    # How often expiry is looked for.
    sweep_interval: float = 0.5
    # Bounds of a claim, and its length where the holder names none.
    claim_ttl: float = 30.0
    min_claim_ttl: float = 1.0
    max_claim_ttl: float = 600.0
    # Bound of a lease on an engine with a fixed TTL of its own.
    max_fixed_ttl: float = 3600.0
    # An idle lease is renewed for this long after its last use at most, and for this long if no
    # further use was said to be expected, ...
    idle_keep: float = 900.0
    final_keep: float = 120.0
    # ... as long as leases, claimed ones included, take no more than this part of their engine's
    # KV blocks, unless the engine says another one. The least worth go first.
    retention_budget: float = 0.35
    # An engine where requests wait is short of memory if less than this part of its KV blocks is
    # free, or less than its largest lease takes: what waits is a turn like those that left leases.
    # A tenth lets the requests that run grow, which otherwise preempt each other.
    pressure_free: float = 0.1
    # How long that must have been so. A turn that arrives or reads from its prefill engine counts
    # as waiting for some tenths of a second, and must not cost an idle session its lease.
    pressure_after: float = 1.0
    # Milliseconds that computing a context anew takes: of each token, and of each pair of them.
    recompute_per_token: float = 0.125
    recompute_per_token_squared: float = 1.5e-6
    # How many conversations are watched for their return; one takes about 0.4 kB.
    max_watched: int = 32_768
    # How often what was learnt of returns is used anew, and when it has lost half of its weight.
    returns_refresh: float = 10.0
    returns_half_life: float = 21_600.0
    # For how long, and how many, ended leases can still be asked for.
    remember_ended: float = 600.0
    max_ended: int = 16_384
    # Claims that one lease can carry at once.
    max_claims: int = 256

    def __post_init__(self) -> None:
        if self.ttl <= 0:
            raise ValueError("lease ttl must be positive")
        if self.renew_interval == 0:
            object.__setattr__(self, "renew_interval", self.ttl / 3)
        if not 0 < self.renew_interval <= self.ttl / 2:
            raise ValueError("lease renew_interval must be positive and at most ttl / 2")
        if self.grace < 0 or self.sweep_interval <= 0:
            raise ValueError("grace must not be negative and sweep_interval must be positive")
        if not 0 < self.min_claim_ttl <= self.claim_ttl <= self.max_claim_ttl:
            raise ValueError("claims need 0 < min_claim_ttl <= claim_ttl <= max_claim_ttl")
        if self.max_fixed_ttl <= 0:
            raise ValueError("max_fixed_ttl must be positive")
        if min(self.idle_keep, self.final_keep) < 0 or not 0 <= self.retention_budget <= 1:
            raise ValueError("keeping times must not be negative, retention_budget within 0 to 1")
        if not 0 <= self.pressure_free <= 1 or self.pressure_after < 0:
            raise ValueError("pressure_free must be within 0 to 1, pressure_after not negative")
        self._check_returns()
        if self.remember_ended < 0 or min(self.max_ended, self.max_claims) < 1:
            raise ValueError("remember_ended must not be negative, and limits at least 1")

    def _check_returns(self) -> None:
        if min(self.recompute_per_token, self.recompute_per_token_squared) < 0:
            raise ValueError("recompute costs must not be negative")
        if self.max_watched < 0 or min(self.returns_refresh, self.returns_half_life) <= 0:
            raise ValueError("max_watched must not be negative, spans of returns positive")

    def clamp_claim(self, ttl: float) -> float:
        """The length granted for a claim; zero means the default."""
        if ttl == 0:
            return self.claim_ttl
        return min(max(ttl, self.min_claim_ttl), self.max_claim_ttl)

    def clamp_fixed(self, ttl: float) -> float:
        """The TTL granted for a lease on an engine with a fixed one; the engine keeps no longer."""
        return min(ttl, self.max_fixed_ttl)
