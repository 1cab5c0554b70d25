"""Leases on engines with the stock connector, which hold blocks for a fixed time.

Nobody reports these retentions: a gateway saw the engine hand out a handle, and asks. Such a
lease cannot be renewed, and ends at its time or when it is released.
"""

from dataclasses import replace

from kvplane_services.clock import Clock
from kvplane_services.engine.model import ConnectorKind, EngineState
from kvplane_services.errors import EpochStale, FailedPrecondition, InvalidRequest, NotFound
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.grants import check_lease, lease_id_for
from kvplane_services.lease.ledger import Ledger, Record
from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.lease.ports import Engines
from kvplane_services.lease.tokens import TokenIssuer
from kvplane_services.store.requests import RequestMemory


class FixedGrants:
    """Grants leases with a fixed TTL, one call at a time."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        issuer: TokenIssuer,
        engines: Engines,
        clock: Clock,
        config: LeaseConfig,
    ) -> None:
        self._ledger = ledger
        self._issuer = issuer
        self._engines = engines
        self._clock = clock
        self._config = config
        self._requests: RequestMemory[tuple[Record, float]] = RequestMemory()

    async def grant(self, lease: Lease, *, ttl: float, request_id: str) -> tuple[Record, float]:
        """See `LeaseManager.grant`; returns the record and the granted TTL in seconds.

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
        record = self._ledger.retention(lease.engine_id, lease.retention_id)
        if record is None:
            record = self._ledger.grant(
                self._named(lease, await self._issuer.next()),
                ttl=granted,
                now=self._clock.now(),
                renewable=False,
            )
        answer = (record, granted)
        self._requests.remember(request_id, asked, answer, self._clock.now())
        return answer

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

    def _named(self, lease: Lease, token: int) -> Lease:
        lease_id = lease_id_for(
            lease.engine_id, lease.engine_epoch, lease.retention_id, taken=self._ledger.knows
        )
        return replace(
            lease,
            lease_id=lease_id,
            fencing_token=token,
            state=LeaseState.ACTIVE,
            end_reason=None,
            reads=0,
            claims=(),
            ttl=0.0,
            create_time=self._clock.wall(),
            expire_time=None,
        )
