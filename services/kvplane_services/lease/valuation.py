"""What the home of engines knows of the worth of their leases.

It is learnt from the conversations on the engines that this replica is home of, all together, and
is in its memory only: a replica that starts, or takes an engine over, begins with the prior.

Not promised: that every return is noticed when it happens. A conversation whose lease has ended is
seen again when its next turn ends.
"""

from kvplane_services.lease.comebacks import Comebacks
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.model import Lease
from kvplane_services.lease.record import Record
from kvplane_services.lease.return_kinds import Hint, Kind
from kvplane_services.lease.return_rates import ReturnRates
from kvplane_services.lease.worth import RecomputeCost, worth_per_block
from kvplane_services.session.model import SessionKey

# How routers call themselves as holders: their claims are turns, all others are wishes.
_ROUTERS = "routers/"


class Valuation:
    """Values leases, and learns from what becomes of them.

    Args:
        config: What recomputing costs, and how many conversations are watched.

    """

    def __init__(self, *, config: LeaseConfig) -> None:
        self._rates = ReturnRates(half_life=config.returns_half_life)
        self._comebacks = Comebacks[SessionKey](rates=self._rates, limit=config.max_watched)
        self._cost = RecomputeCost(
            per_token=config.recompute_per_token,
            per_token_squared=config.recompute_per_token_squared,
        )
        self._refresh_interval = config.returns_refresh
        self._refreshed_at = float("-inf")

    def granted(self, lease: Lease, now: float) -> Kind:
        """Watches the conversation whose turn left this lease, and returns its kind."""
        return self._comebacks.end_turn(lease.session_key, lease.tokens, now)

    def taken_up(self, lease: Lease) -> Kind:
        """The kind of a lease whose turn ended at another home."""
        return self._comebacks.kind(lease.session_key, lease.tokens)

    def finished(self, record: Record) -> None:
        """Notes that somebody expects no further use of a lease."""
        self._hint(record, Hint.FINAL)

    def wanted(self, record: Record) -> None:
        """Notes a claim at another replica: takes back that no further use was expected."""
        if record.kind.hint is Hint.FINAL:
            self._hint(record, Hint.NONE)

    def used(self, record: Record, now: float) -> None:
        """Notes that a lease is read: its conversation is back."""
        # Counted among those of whom was said what was said of it.
        self._comebacks.begin_turn(record.lease.session_key, now)
        self.wanted(record)

    def claimed(self, record: Record, holder: str, now: float) -> None:
        """Notes a new claim: a turn's, or the wish of somebody who will be back."""
        if holder.startswith(_ROUTERS):
            self.used(record, now)
        elif record.kind.hint is not Hint.STAY:
            self._hint(record, Hint.STAY)

    def worth(self, record: Record, now: float, *, claimed: bool) -> float:
        """Milliseconds of recomputing that each block is expected to save a second; see `worth`."""
        lease = record.lease
        idle = 0.0 if claimed else now - record.used_at
        return worth_per_block(
            self._rates.per_second(record.kind, idle), self._cost.of(lease.tokens), lease.blocks
        )

    def sweep(self, now: float) -> None:
        """Counts who is still away, and from time to time takes into account what was counted."""
        self._comebacks.sweep(now)
        if now - self._refreshed_at >= self._refresh_interval:
            self._rates.refresh(now)
            self._refreshed_at = now

    def _hint(self, record: Record, hint: Hint) -> None:
        record.kind = record.kind.hinted(hint)
        self._comebacks.hint(record.lease.session_key, hint)
