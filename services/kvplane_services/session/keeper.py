"""Claims leases of sessions that are to be kept, and releases or ranks last those that are not."""

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from kvplane_services.clock import Clock
from kvplane_services.errors import KvplaneError, LeaseFenced
from kvplane_services.lease.model import Lease, RenewalOutcome
from kvplane_services.lease.ports import MAX_HOLDER_BYTES, LeaseControl, LeaseRenewal
from kvplane_services.session.book import SessionBook
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.record import SessionRecord
from kvplane_services.session.shares import Shares
from kvplane_services.session.wishes import Wishes

_log = logging.getLogger(__name__)

# Calls to the lease manager at once.
_AT_ONCE = 32


class Keeper:
    """Does at the lease manager what sessions need; of the sessions that this replica looks after.

    Args:
        control: The lease manager.
        book: The sessions.
        wishes: Until when each is to be kept.
        shares: Which sessions this replica looks after.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        control: LeaseControl,
        book: SessionBook,
        wishes: Wishes,
        shares: Shares,
        clock: Clock,
        config: SessionConfig,
    ) -> None:
        self._control = control
        self._book = book
        self._wishes = wishes
        self._shares = shares
        self._clock = clock
        self._config = config
        # Leases that are live though their session was ended: session and token, by lease.
        self._owed: dict[str, tuple[str, int]] = {}
        # Leases that are live, though the turn that left them was said to be the last; the same.
        self._final: dict[str, tuple[str, int]] = {}
        # Those of them that were told of: once, for who uses the lease takes it back.
        self._told: set[str] = set()
        # What there is to do at once.
        self._to_claim: set[str] = set()
        self._to_release: set[str] = set()
        self._to_tell: set[str] = set()
        self._wake = asyncio.Event()
        # What failed in this round, and whether something did in the last one: the log is told of
        # the first one only, for there may be many sessions, and many rounds.
        self._failures: list[str] = []
        self._failing = False

    # -- What there is to do -----------------------------------------------------------------

    def claim_soon(self, name: str) -> None:
        """Claims a session's new lease, if the session is to be kept."""
        if self._wishes.remaining(name, self._clock.now()) > 0:
            self._to_claim.add(name)
            self._wake.set()

    def release_soon(self, name: str, lease: Lease) -> None:
        """Releases a lease until it is seen to be released."""
        self._owed[lease.lease_id] = (name, lease.fencing_token)
        self._to_release.add(lease.lease_id)
        self._wake.set()

    def tell_final_soon(self, name: str, lease: Lease) -> None:
        """Tells the lease manager that no further use of a lease is expected."""
        if lease.lease_id in self._told:
            return
        self._final[lease.lease_id] = (name, lease.fencing_token)
        self._to_tell.add(lease.lease_id)
        self._wake.set()

    def released(self, lease_id: str) -> None:
        """Notes that a lease is live no more."""
        if self._owed:
            self._owed.pop(lease_id, None)
        if self._final:
            self._final.pop(lease_id, None)
        self._told.discard(lease_id)

    def review(self) -> None:
        """Looks anew at what this replica looks after: another one may be gone."""
        self._to_claim.update(self._wishes.kept(self._clock.now()))
        self._to_release.update(self._owed)
        self._to_tell.update(self._final)
        self._wake.set()

    async def run(self) -> None:
        """Does what there is to do, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            leases, self._to_release = self._to_release, set()
            await self._each(self._try_release(lease) for lease in leases)
            last, self._to_tell = self._to_tell, set()
            await self._each(self._try_tell_final(lease) for lease in last)
            names, self._to_claim = self._to_claim, set()
            await self._each(self._try_claim(name) for name in names if self._shares.mine(name))
            if leases or last or names:
                self._tell()

    # -- At the lease manager ----------------------------------------------------------------

    async def claim(self, name: str) -> RenewalOutcome:
        """Claims the lease of a session that is to be kept, if it has one. Raises Unavailable."""
        entry = self._book.find(name)
        remaining = self._wishes.remaining(name, self._clock.now())
        if entry is None or not entry.lease_id or remaining <= 0:
            return RenewalOutcome.NOT_FOUND
        renewal = LeaseRenewal(
            lease=f"leases/{entry.lease_id}",
            fencing_token=live_token(self._book.record_of(entry)),
            ttl=min(self._config.claim_ttl, remaining),
        )
        (outcome,) = await self._control.renew(holder_of(name), [renewal])
        return outcome

    async def drop(self, name: str, record: SessionRecord) -> None:
        """Gives the claim of a session up. Raises Unavailable."""
        if not record.lease_id or not record.hints.keep_for:
            return
        renewal = LeaseRenewal(f"leases/{record.lease_id}", live_token(record), drop=True)
        await self._control.renew(holder_of(name), [renewal])

    async def tell_final(self, name: str, lease: str, fencing_token: int) -> RenewalOutcome:
        """Says that no further use of a session's lease is expected. Raises Unavailable."""
        renewal = LeaseRenewal(lease, fencing_token, drop=True, final=True)
        (outcome,) = await self._control.renew(holder_of(name), [renewal])
        return outcome

    async def release(self, name: str, record: SessionRecord) -> None:
        """Gives a session's claim up, and releases its lease. Raises LeaseFenced, Unavailable."""
        await self.drop(name, record)
        if record.lease_id:
            await self._control.release(f"leases/{record.lease_id}", live_token(record))

    # -- Steps -------------------------------------------------------------------------------

    async def _each(self, calls: Iterable[Coroutine[Any, Any, None]]) -> None:
        waiting = list(calls)
        for start in range(0, len(waiting), _AT_ONCE):
            await asyncio.gather(*waiting[start : start + _AT_ONCE])

    async def _try_claim(self, name: str) -> None:
        try:
            await self.claim(name)
        except KvplaneError as error:
            # Claimed again at the next interval, well within the lease's TTL.
            self._failures.append(f"{name} was not claimed: {error.message}")

    async def _try_release(self, lease_id: str) -> None:
        owed = self._owed.get(lease_id)
        if owed is None or not self._shares.mine(owed[0]):
            return
        try:
            await self._control.release(f"leases/{lease_id}", owed[1])
        except LeaseFenced:
            # Not the lease that was seen; what is there now is still to be told.
            self._owed.pop(lease_id, None)
        except KvplaneError as error:
            # Released again at the next interval; and nobody claims it.
            self._failures.append(f"leases/{lease_id} was not released: {error.message}")

    async def _try_tell_final(self, lease_id: str) -> None:
        last = self._final.get(lease_id)
        if last is None or not self._shares.mine(last[0]):
            return
        try:
            outcome = await self.tell_final(last[0], f"leases/{lease_id}", last[1])
        except KvplaneError as error:
            self._failures.append(f"leases/{lease_id} was not said to be final: {error.message}")
            return
        if outcome is not RenewalOutcome.UNAVAILABLE:
            self._final.pop(lease_id, None)
            self._told.add(lease_id)

    def _tell(self) -> None:
        failures, self._failures = self._failures, []
        if failures and not self._failing:
            _log.warning("%s (and %d more); tried again", failures[0], len(failures) - 1)
        elif self._failing and not failures:
            _log.info("sessions are claimed and released again")
        self._failing = bool(failures)


def live_token(record: SessionRecord) -> int:
    """The fencing token of a session's live lease."""
    tokens = (turn.token for turn in record.turns if turn.lease_id == record.lease_id)
    return next(tokens, record.token)


def holder_of(session: str) -> str:
    """The holder in whose name a session's lease is claimed: its name, shortened if too long."""
    if len(session.encode()) <= MAX_HOLDER_BYTES:
        return session
    return "sessions/~" + hashlib.blake2b(session.encode(), digest_size=16).hexdigest()
