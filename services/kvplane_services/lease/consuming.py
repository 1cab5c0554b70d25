"""Gives out the one read of a retention whose engine frees it by that.

A second read would find other blocks and not notice. So of all who want to read, over all
replicas, one is told yes: whoever's write to the store is taken. The lease is RELEASING from then
on, until its time is up, because nobody tells when the engine has freed the blocks; as long as it
is there the same retention cannot be leased a second time.
"""

from dataclasses import replace

from kvplane_services.clock import Clock
from kvplane_services.engine.ports import Homes
from kvplane_services.errors import (
    Conflict,
    FailedPrecondition,
    GuardFailed,
    NotFound,
    Unavailable,
)
from kvplane_services.lease.claim_desk import seconds_left
from kvplane_services.lease.elsewhere import ElsewhereLeases
from kvplane_services.lease.grants import check_token
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.store.model import Put, Versioned
from kvplane_services.store.ports import Table

_ATTEMPTS = 5
# What must be left of a lease: vLLM's readers decline in the last 5 s, which makes some of them
# wait for ever, and the read is yet to begin.
_READ_MARGIN = 10.0


class Consuming:
    """Takes reads, one per lease.

    Args:
        ledger: Leases of own engines.
        elsewhere: Leases of other replicas' engines.
        table: Where leases are published.
        homes: Whose guards and anchors writes carry.
        clock: Time; of day for leases at other replicas.

    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        elsewhere: ElsewhereLeases,
        table: Table[Lease],
        homes: Homes,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._elsewhere = elsewhere
        self._table = table
        self._homes = homes
        self._clock = clock

    async def consume(self, lease_id: str, fencing_token: int) -> None:
        """Takes the read.

        Raises:
            NotFound: There is no such lease, or it has ended.
            LeaseFenced: Its token is another one.
            FailedPrecondition: Somebody was quicker, it is too late, or reads do not consume.
            Unavailable: It is not sure who was first. Do not read.

        """
        for _ in range(_ATTEMPTS):
            found = await self._table.get(lease_id, current=True)
            if found is None or found.value.state is LeaseState.ENDED:
                raise NotFound(f"leases/{lease_id} is over: compute the prompt anew")
            check_token(found.value, fencing_token)
            self._check(found.value)
            try:
                await self._write(found)
            except Conflict:
                continue  # Somebody wrote in between: look what.
            return
        raise Unavailable(
            "the lease changes all the time: compute the prompt anew", retry_after=0.5
        )

    def _check(self, lease: Lease) -> None:
        record = self._ledger.find(lease.lease_id)
        if not lease.ttl:
            raise FailedPrecondition(
                f"reads do not consume {lease.name}: claim it instead", lease=lease.name
            )
        if lease.state is not LeaseState.ACTIVE or (record is not None and record.release):
            raise FailedPrecondition(
                f"{lease.name} is given out or given up already: compute the prompt anew",
                lease=lease.name,
            )
        left = seconds_left(lease, self._clock.wall())
        if record is not None:
            left = record.renewed_at + record.ttl - self._clock.now()
        if left < _READ_MARGIN:
            raise FailedPrecondition(
                f"{lease.name} has {max(left, 0.0):.0f} s left, and a read takes up to "
                f"{_READ_MARGIN:g} s: compute the prompt anew",
                lease=lease.name,
            )

    async def _write(self, found: Versioned[Lease]) -> None:
        taken = replace(found.value, state=LeaseState.RELEASING, release_reason=EndReason.CONSUMED)
        place = await self._homes.place_of(taken.engine_id, current=True)
        if place is None or place.guard is None:
            raise Unavailable(f"{taken.engine} has no home just now: retry", retry_after=1.0)
        put = Put(taken.lease_id, taken, found.revision, place.anchor)
        try:
            revision = await self._table.commit([put], guards=[place.guard])
        except GuardFailed:
            raise Conflict("its home moved meanwhile") from None
        record = self._ledger.find(taken.lease_id)
        if record is not None:
            # Before the watch tells, so that nobody at this replica is shown a lease to read.
            self._ledger.take_release(record, taken)
            self._ledger.set_revision(taken.lease_id, revision)
        elif not self._homes.is_home(taken.engine_id):
            self._elsewhere.put(taken, revision)
