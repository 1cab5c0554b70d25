"""Leases on engines with the stock connector, which hold blocks for a fixed time.

Nobody reports these retentions: a gateway saw the engine hand out a handle, and asks. Such a
lease cannot be renewed, and ends at its time or when it is released.

Any replica grants them, whichever probes the engine: a gateway knows one address of the plane,
and the blocks are there now. The engine's home sees the lease, and looks after it from then on.
"""

import datetime as dt
from dataclasses import dataclass, replace

from kvplane_services.clock import Clock
from kvplane_services.engine.model import ConnectorKind, EngineState
from kvplane_services.engine.ports import Homes
from kvplane_services.errors import (
    Conflict,
    EpochStale,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.elsewhere import ElsewhereLeases
from kvplane_services.lease.grants import check_lease, lease_id_for
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.lease.ports import Engines
from kvplane_services.lease.publication import Publication
from kvplane_services.lease.tokens import TokenIssuer
from kvplane_services.store.model import Put
from kvplane_services.store.ports import Table
from kvplane_services.store.requests import RequestMemory

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as granted, and for how long, in seconds."""

    lease: Lease
    ttl: float


class FixedGrants:
    """Grants leases with a fixed TTL, one call at a time."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        elsewhere: ElsewhereLeases,
        publication: Publication,
        issuer: TokenIssuer,
        table: Table[Lease],
        engines: Engines,
        homes: Homes,
        clock: Clock,
        config: LeaseConfig,
    ) -> None:
        self._ledger = ledger
        self._elsewhere = elsewhere
        self._publication = publication
        self._issuer = issuer
        self._table = table
        self._engines = engines
        self._homes = homes
        self._clock = clock
        self._config = config
        self._requests: RequestMemory[Grant] = RequestMemory()

    async def grant(self, lease: Lease, *, ttl: float, request_id: str) -> Grant:
        """See `LeaseManager.grant`; the lease is as it was granted.

        A retention that has a lease keeps it: two gateways may have seen the same handle.
        """
        check_lease(lease, field="lease")
        if ttl <= 0:
            raise InvalidRequest("ttl is required and must be positive", field="ttl")
        asked = (lease, ttl)
        first = self._requests.find(request_id, asked, self._clock.now())
        if first is not None:
            return first
        self._check_engine(lease)
        granted = self._config.clamp_fixed(ttl)
        answer = Grant(await self._granted(lease, granted), granted)
        self._requests.remember(request_id, asked, answer, self._clock.now())
        return answer

    async def _granted(self, lease: Lease, ttl: float) -> Lease:
        for attempt in range(_ATTEMPTS):
            record = self._ledger.retention(lease.engine_id, lease.retention_id)
            if record is not None:
                await self._publication.publish(record.lease_id)
                return record.lease
            token = (await self._issuer.draw(1)).first
            self._check_engine(lease)
            self._check_first(lease)
            if self._homes.is_home(lease.engine_id):
                return await self._grant_here(lease, token, ttl)
            try:
                return await self._grant_elsewhere(lease, token, ttl, current=attempt > 0)
            except Conflict:
                continue  # Its home moved, or another gateway was quicker: look again.
        raise Unavailable("the lease changes all the time: retry", retry_after=0.5)

    async def _grant_here(self, lease: Lease, token: int, ttl: float) -> Lease:
        record = self._ledger.retention(lease.engine_id, lease.retention_id)
        if record is None:
            record = self._ledger.grant(
                self._named(lease, _lease_id(lease), token, ttl), ttl=ttl, now=self._clock.now()
            )
        granted = record.lease
        await self._publication.publish(granted.lease_id)
        return granted

    async def _grant_elsewhere(
        self, lease: Lease, token: int, ttl: float, *, current: bool
    ) -> Lease:
        lease_id = _lease_id(lease)
        found = await self._table.get(lease_id, current=current)
        if found is not None and found.value.state is not LeaseState.ENDED:
            return found.value
        if found is not None:
            raise _over(lease)
        place = await self._homes.place_of(lease.engine_id, current=current)
        if place is None or place.guard is None:
            raise Unavailable(f"{lease.engine} has no home just now: retry", retry_after=1.0)
        named = self._named(lease, lease_id, token, ttl)
        revision = await self._table.commit(
            [Put(lease_id, named, 0, place.anchor)], guards=[place.guard]
        )
        if not self._homes.is_home(lease.engine_id):
            self._elsewhere.put(named, revision)
        return named

    def _check_engine(self, lease: Lease) -> None:
        engine = self._engines.find(lease.engine_id)
        if engine is None or engine.state is EngineState.LOST:
            raise NotFound(
                f"there is no {lease.engine}: it must register first", engine=lease.engine
            )
        if engine.epoch != lease.engine_epoch:
            raise EpochStale(
                f"{lease.engine} is registered with epoch {engine.epoch}, not "
                f"{lease.engine_epoch}: what it held before is gone",
                engine=lease.engine,
                epoch=str(engine.epoch),
            )
        if engine.build.connector is ConnectorKind.KVPLANE:
            raise FailedPrecondition(
                f"{lease.engine} runs the kvplane connector: its leases are granted on its "
                "heartbeats",
                engine=lease.engine,
            )

    def _check_first(self, lease: Lease) -> None:
        """Refuses a retention whose lease has ended: the one read was taken, or its time is up."""
        lease_id = _lease_id(lease)
        if self._ledger.retention(lease.engine_id, lease.retention_id) is None and (
            self._ledger.knows(lease_id) or self._elsewhere.find_ended(lease_id) is not None
        ):
            raise _over(lease)

    def _named(self, lease: Lease, lease_id: str, token: int, ttl: float) -> Lease:
        wall = self._clock.wall()
        return replace(
            lease,
            lease_id=lease_id,
            fencing_token=token,
            state=LeaseState.ACTIVE,
            end_reason=None,
            release_reason=None,
            reads=0,
            claims=(),
            ttl=ttl,
            create_time=wall,
            expire_time=wall + dt.timedelta(seconds=ttl),
        )


def _lease_id(lease: Lease) -> str:
    """The id of the only lease that a retention of a fixed time ever has."""
    return lease_id_for(
        lease.engine_id, lease.engine_epoch, lease.retention_id, taken=lambda _: False
    )


def _over(lease: Lease) -> FailedPrecondition:
    return FailedPrecondition(
        f"the lease on {lease.retention_id} of {lease.engine} has ended: it gets no other",
        engine=lease.engine,
    )
