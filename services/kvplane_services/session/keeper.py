"""Claims the leases of sessions whose client asked to be kept, and releases those not needed."""

import hashlib
import logging

from kvplane_services.clock import Clock
from kvplane_services.errors import KvplaneError
from kvplane_services.lease.model import RenewalOutcome
from kvplane_services.lease.ports import MAX_HOLDER_BYTES, LeaseControl, LeaseRenewal
from kvplane_services.session.book import Entry
from kvplane_services.session.config import SessionConfig

_log = logging.getLogger(__name__)


class Keeper:
    """Remembers until when each session is to be kept, and claims and releases on its behalf."""

    def __init__(self, *, control: LeaseControl, clock: Clock, config: SessionConfig) -> None:
        self._control = control
        self._clock = clock
        self._config = config
        self._until: dict[str, tuple[Entry, float]] = {}

    def keep(self, entry: Entry, seconds: float) -> None:
        """Keeps a session for that long from now on; the latest wish counts."""
        self._until[entry.session.name] = (entry, self._clock.now() + seconds)

    def kept(self) -> list[Entry]:
        """Sessions that are to be kept."""
        return [entry for entry, _ in self._until.values()]

    def expired(self) -> list[Entry]:
        """Forgets the wishes that are over, and returns their sessions."""
        now = self._clock.now()
        over = [entry for entry, until in self._until.values() if until <= now]
        for entry in over:
            del self._until[entry.session.name]
        return over

    async def claim(self, entry: Entry) -> RenewalOutcome:
        """Claims the lease of a session that is to be kept, if it has one. Raises Unavailable."""
        wish = self._until.get(entry.session.name)
        if wish is None or not entry.session.lease:
            return RenewalOutcome.NOT_FOUND
        remaining = wish[1] - self._clock.now()
        if remaining <= 0:
            return RenewalOutcome.NOT_FOUND
        renewal = LeaseRenewal(
            lease=entry.session.lease,
            fencing_token=entry.token,
            ttl=min(self._config.claim_ttl, remaining),
        )
        (outcome,) = await self._control.renew(holder_of(entry.session.name), [renewal])
        return outcome

    async def try_claim(self, entry: Entry) -> None:
        """Claims as `claim` does; a claim that fails is logged."""
        try:
            await self.claim(entry)
        except KvplaneError as error:
            # Claimed again at the next interval, well within the lease's TTL.
            _log.warning("%s was not claimed: %s", entry.session.lease, error.message)

    async def drop(self, entry: Entry) -> None:
        """Keeps a session no more, and gives its claim up. Raises Unavailable."""
        if self._until.pop(entry.session.name, None) is None or not entry.session.lease:
            return
        renewal = LeaseRenewal(entry.session.lease, entry.token, drop=True)
        await self._control.renew(holder_of(entry.session.name), [renewal])

    async def release(self, entry: Entry) -> None:
        """Keeps a session no more, and releases its lease. Raises LeaseFenced, Unavailable."""
        await self.drop(entry)
        if entry.session.lease:
            await self._control.release(entry.session.lease, entry.token)


def holder_of(session: str) -> str:
    """The holder in whose name a session's lease is claimed: its name, shortened if too long."""
    if len(session.encode()) <= MAX_HOLDER_BYTES:
        return session
    return "sessions/~" + hashlib.blake2b(session.encode(), digest_size=16).hexdigest()
