"""Gives leases up on somebody's word: own ones, and those whose home is another replica."""

from dataclasses import replace

from kvplane_services.engine.ports import Homes
from kvplane_services.errors import Conflict, GuardFailed, Unavailable
from kvplane_services.lease.elsewhere import ElsewhereLeases
from kvplane_services.lease.grants import check_token
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.lease.publication import Publication
from kvplane_services.store.commits import store_away
from kvplane_services.store.model import Put, Versioned
from kvplane_services.store.ports import Store, Table

_ATTEMPTS = 5


class Releasing:
    """Releases leases. Of another replica's engine it writes the wish, which the home sees."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        elsewhere: ElsewhereLeases,
        publication: Publication,
        table: Table[Lease],
        store: Store,
        homes: Homes,
    ) -> None:
        self._ledger = ledger
        self._elsewhere = elsewhere
        self._publication = publication
        self._table = table
        self._store = store
        self._homes = homes

    async def release(self, lease_id: str, fencing_token: int) -> None:
        """Releases a lease. Does nothing if it is gone, or on its way out.

        Raises:
            LeaseFenced: Its token is another one.
            Unavailable: It is not sure that the release is known beyond this replica.

        """
        record = self._ledger.find(lease_id)
        if record is not None:
            check_token(record.lease, fencing_token)
            self._ledger.release(record, EndReason.RELEASED)
            await self._publication.publish(lease_id)
            return
        if self._ledger.find_ended(lease_id) is not None:
            # It may be written as live still: its end is on its way.
            return
        for attempt in range(_ATTEMPTS):
            # The first look is at this replica's copy, all others are at the store itself.
            try:
                if await self._release_elsewhere(lease_id, fencing_token, current=attempt > 0):
                    return
            except Conflict:
                continue  # Decided on an old copy: look at the store itself.
        raise Unavailable("the lease changes all the time: retry", retry_after=0.5)

    async def _release_elsewhere(self, lease_id: str, fencing_token: int, *, current: bool) -> bool:
        if current and not self._store.reachable:
            raise store_away()
        found = await self._table.get(lease_id, current=current)
        if found is None:
            vanished = self._elsewhere.find(lease_id)
            if vanished is None:
                # This replica may not have heard of it yet: only the store knows that it is gone.
                return current
            check_token(vanished, fencing_token)
            raise Unavailable("the store is being put right: retry", retry_after=1.0)
        lease = found.value
        if lease.state is LeaseState.ENDED:
            return True
        check_token(lease, fencing_token)
        if lease.state is LeaseState.RELEASING:
            return True
        if not self._store.reachable:
            raise store_away()
        await self._write(found, current=current)
        return True

    async def _write(self, found: Versioned[Lease], *, current: bool) -> None:
        lease = replace(found.value, state=LeaseState.RELEASING, release_reason=EndReason.RELEASED)
        place = await self._homes.place_of(lease.engine_id, current=current)
        if place is None or place.guard is None:
            raise Unavailable(f"{lease.engine} has no home just now: retry", retry_after=1.0)
        put = Put(lease.lease_id, lease, found.revision, place.anchor)
        try:
            revision = await self._table.commit([put], guards=[place.guard])
        except GuardFailed:
            raise Conflict("its home moved meanwhile") from None
        if not self._homes.is_home(lease.engine_id):
            self._elsewhere.put(lease, revision)
