"""Leases, as operators and gateways see them. Holders use `LeaseKeeper`."""

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from kvplane.api.lease.v1 import lease_pb2, lease_pb2_grpc
from kvplane.client.calls import Removed, ServiceCalls, Synced, Upserted, WatchEvent
from kvplane.client.clock import Clock
from kvplane.client.engine_wire import duration_of
from kvplane.client.names import engine_name, lease_name
from kvplane.client.replicas import Replicas

if TYPE_CHECKING:
    import grpc.aio

    from kvplane.api.lease.v1.lease_pb2_grpc import LeaseServiceAsyncStub

Lease = lease_pb2.Lease


class Leases:
    """LeaseService. Leases are given by name, `leases/ab12`, or id. Raises KvplaneClientError."""

    def __init__(self, replicas: Replicas, *, timeout: float, clock: Clock) -> None:
        self._calls = ServiceCalls(replicas=replicas, stub=_stub, timeout=timeout, clock=clock)

    async def grant(
        self, lease: Lease, *, ttl: float, request_id: str = ""
    ) -> lease_pb2.GrantLeaseResponse:
        """Grants a lease on a retention of an engine with the stock connector.

        Args:
            lease: Its required fields must be set.
            ttl: Seconds that the engine holds the blocks from now on.
            request_id: UUID4 that makes retries return the first answer.

        """
        request = lease_pb2.GrantLeaseRequest(
            lease=lease, ttl=duration_of(ttl), request_id=request_id
        )
        return await self._calls.call(
            lambda stub: stub.GrantLease, request, repeat=bool(request_id)
        )

    async def renew(
        self, holder: str, renewals: Sequence[lease_pb2.LeaseRenewal]
    ) -> lease_pb2.BatchRenewLeasesResponse:
        """Claims leases once; one result per renewal, in order. At most 1,024 renewals."""
        request = lease_pb2.BatchRenewLeasesRequest(holder=holder, renewals=renewals)
        return await self._calls.call(lambda stub: stub.BatchRenewLeases, request, repeat=True)

    async def get(self, lease: str) -> Lease:
        """Gets one lease; an ended one for a while, with its reason. Raises NotFoundError."""
        request = lease_pb2.GetLeaseRequest(name=lease_name(lease))
        return (await self._calls.call(lambda stub: stub.GetLease, request, repeat=True)).lease

    def list(
        self,
        *,
        engine: str = "",
        session: str = "",
        include_ended: bool = False,
        page_size: int = 0,
    ) -> AsyncGenerator[Lease, None]:
        """Iterates over the leases by name, only those of an engine or session if given."""
        request = lease_pb2.ListLeasesRequest(
            engine=engine_name(engine) if engine else "",
            session=session,
            include_ended=include_ended,
            page_size=page_size,
        )
        return self._calls.pages(lambda stub: stub.ListLeases, request, lambda page: page.leases)

    async def release(self, lease: str, *, fencing_token: int) -> None:
        """Ends a lease. Succeeds if it is gone; raises FencedError if the token is not live."""
        request = lease_pb2.ReleaseLeaseRequest(name=lease_name(lease), fencing_token=fencing_token)
        await self._calls.call(lambda stub: stub.ReleaseLease, request, repeat=True)

    async def consume(self, lease: str, *, fencing_token: int) -> None:
        """Takes the one read that an engine with the stock connector allows.

        Who gets an error must not read; a call that is cut off is not repeated.
        """
        request = lease_pb2.ConsumeLeaseRequest(name=lease_name(lease), fencing_token=fencing_token)
        await self._calls.call(lambda stub: stub.ConsumeLease, request, repeat=False)

    def watch(self, *, engine: str = "") -> AsyncGenerator[WatchEvent[Lease], None]:
        """The leases, then every grant and end, over reconnects; see `ServiceCalls.watch`."""
        name = engine_name(engine) if engine else ""
        return self._calls.watch(
            lambda stub: stub.WatchLeases,
            lambda after: lease_pb2.WatchLeasesRequest(after_revision=after, engine=name),
            _event,
        )


def _event(message: lease_pb2.WatchLeasesResponse) -> WatchEvent[Lease] | None:
    match message.WhichOneof("event"):
        case "upserted":
            return Upserted(message.upserted, message.revision)
        case "ended":
            return Removed(message.ended.name, message.ended, message.revision)
        case "synced":
            return Synced(message.revision)
        case _:
            return None


def _stub(channel: "grpc.aio.Channel") -> "LeaseServiceAsyncStub":
    return lease_pb2_grpc.LeaseServiceStub(channel)
