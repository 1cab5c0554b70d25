"""Durations and bounds of sessions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How long sessions are remembered and may be kept; durations in seconds.

    Raises:
        ValueError: The durations do not fit together.

    """

    # A session is forgotten when it was not used and had no lease for this long.
    ttl: float = 3600.0
    min_ttl: float = 60.0
    max_ttl: float = 604_800.0
    # How long a touch keeps a session, where it does not say, and at most.
    keep_for: float = 120.0
    min_keep_for: float = 1.0
    max_keep_for: float = 3600.0
    # A kept session's lease is claimed for this long, again and again.
    claim_ttl: float = 30.0
    claim_interval: float = 10.0
    # How often idle sessions, lost leases and unsaved changes are looked for.
    sweep_interval: float = 1.0
    # A lease that vanished without an end counts for so long: its engine's home may put it back.
    lost_grace: float = 30.0
    # Changes that the replica which looks after a session does not save for so long are saved by
    # whoever knows of them.
    save_patience: float = 10.0
    # How long a client's call waits for the store.
    store_wait: float = 1.0
    # A deleted session is remembered for so long, lest what engines still hold of it brings it
    # back. No engine holds blocks for longer without a word from the plane.
    remember_deleted: float = 3600.0
    # Sessions remembered; beyond it the one that has been idle longest is forgotten. Sessions
    # with a live lease are never forgotten: the engines' memory bounds them. Each takes about
    # 750 bytes of every registry's memory, its store's copy included, and 110 bytes more for each
    # turn but the first: 0.4 GB for all, 2 GB if all had 32 turns.
    max_sessions: int = 500_000
    # Latest turns remembered of each.
    max_turns: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.min_ttl <= self.ttl <= self.max_ttl:
            raise ValueError("session ttl must lie within 0 < min_ttl <= ttl <= max_ttl")
        if not 0 < self.min_keep_for <= self.keep_for <= self.max_keep_for:
            raise ValueError("keep_for must lie within 0 < min_keep_for <= keep_for <= max")
        if not 0 < self.claim_interval <= self.claim_ttl / 2:
            raise ValueError("claim_interval must be positive and at most claim_ttl / 2")
        if self.sweep_interval <= 0 or self.max_sessions < 1 or self.max_turns < 1:
            raise ValueError("sweep_interval must be positive, and limits at least 1")
        if min(self.lost_grace, self.save_patience, self.remember_deleted) < 0:
            raise ValueError("lost_grace, save_patience and remember_deleted must not be negative")
        if self.store_wait <= 0:
            raise ValueError("store_wait must be positive")

    def clamp_ttl(self, ttl: float) -> float:
        """The idle time granted for a wish; zero or less means none."""
        return min(max(ttl, self.min_ttl), self.max_ttl) if ttl > 0 else self.ttl

    def clamp_keep(self, keep_for: float) -> float:
        """The keeping time granted for a wish; zero or less means none."""
        if keep_for <= 0:
            return self.keep_for
        return min(max(keep_for, self.min_keep_for), self.max_keep_for)
