"""LeaseService on the wire."""

from collections.abc import AsyncIterator, Iterable, Sequence

import grpc

from kvplane.api.lease.v1 import lease_pb2 as pb
from kvplane.api.lease.v1 import lease_pb2_grpc
from kvplane_services.durations import duration, seconds_of
from kvplane_services.engine.wire import engine_id_of
from kvplane_services.lease.claim_desk import ClaimResult
from kvplane_services.lease.manager import LeaseManager
from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.lease.wire import (
    lease_from_wire,
    lease_to_wire,
    outcome_to_wire,
    renewals_from_wire,
)
from kvplane_services.session.model import SessionKey
from kvplane_services.store.model import Event, Synced, Upserted
from kvplane_services.store.paging import PageRequest


class LeaseServicer(lease_pb2_grpc.LeaseServiceServicer):
    """Translates and calls; errors are translated by the server's interceptor."""

    def __init__(self, *, manager: LeaseManager) -> None:
        self._manager = manager

    async def GrantLease(
        self, request: pb.GrantLeaseRequest, context: grpc.ServicerContext
    ) -> pb.GrantLeaseResponse:
        """See lease.proto."""
        grant = await self._manager.grant(
            lease_from_wire(request.lease),
            ttl=seconds_of(request.ttl),
            request_id=request.request_id,
        )
        return pb.GrantLeaseResponse(lease=lease_to_wire(grant.lease), ttl=duration(grant.ttl))

    async def RenewLeases(
        self, request_iterator: AsyncIterator[pb.RenewLeasesRequest], context: grpc.ServicerContext
    ) -> AsyncIterator[pb.RenewLeasesResponse]:
        """See lease.proto."""
        async for request in request_iterator:
            yield pb.RenewLeasesResponse(
                sequence=request.sequence,
                results=self._claim(request.holder, request.renewals),
                renew_interval=duration(self._manager.config.renew_interval),
            )

    async def BatchRenewLeases(
        self, request: pb.BatchRenewLeasesRequest, context: grpc.ServicerContext
    ) -> pb.BatchRenewLeasesResponse:
        """See lease.proto."""
        return pb.BatchRenewLeasesResponse(
            results=self._claim(request.holder, request.renewals),
            renew_interval=duration(self._manager.config.renew_interval),
        )

    async def ReleaseLease(
        self, request: pb.ReleaseLeaseRequest, context: grpc.ServicerContext
    ) -> pb.ReleaseLeaseResponse:
        """See lease.proto."""
        await self._manager.release(request.name, request.fencing_token)
        return pb.ReleaseLeaseResponse()

    async def ConsumeLease(
        self, request: pb.ConsumeLeaseRequest, context: grpc.ServicerContext
    ) -> pb.ConsumeLeaseResponse:
        """See lease.proto."""
        await self._manager.consume(request.name, request.fencing_token)
        return pb.ConsumeLeaseResponse()

    async def GetLease(
        self, request: pb.GetLeaseRequest, context: grpc.ServicerContext
    ) -> pb.GetLeaseResponse:
        """See lease.proto."""
        return pb.GetLeaseResponse(lease=lease_to_wire(self._manager.get(request.name)))

    async def ListLeases(
        self, request: pb.ListLeasesRequest, context: grpc.ServicerContext
    ) -> pb.ListLeasesResponse:
        """See lease.proto."""
        page = await self._manager.list(
            PageRequest(request.page_size, request.page_token),
            engine_id=engine_id_of(request.engine, field="engine") if request.engine else "",
            session_key=SessionKey.parse(request.session) if request.session else None,
            include_ended=request.include_ended,
        )
        return pb.ListLeasesResponse(
            leases=[lease_to_wire(lease) for lease in page.items],
            next_page_token=page.next_token,
            revision=page.revision,
        )

    async def WatchLeases(
        self, request: pb.WatchLeasesRequest, context: grpc.ServicerContext
    ) -> AsyncIterator[pb.WatchLeasesResponse]:
        """See lease.proto."""
        engine_id = engine_id_of(request.engine, field="engine") if request.engine else ""
        async for event in self._manager.watch(after=request.after_revision):
            message = _event_to_wire(event, engine_id)
            if message is not None:
                yield message

    def _claim(
        self, holder: str, renewals: Sequence[pb.LeaseRenewal]
    ) -> Iterable[pb.LeaseRenewalResult]:
        results = self._manager.claim(holder, renewals_from_wire(renewals))
        return [
            _result_to_wire(renewal.name, result)
            for renewal, result in zip(renewals, results, strict=True)
        ]


def _result_to_wire(name: str, result: ClaimResult) -> pb.LeaseRenewalResult:
    return pb.LeaseRenewalResult(
        name=name, outcome=outcome_to_wire(result.outcome), ttl=duration(result.ttl)
    )


def _event_to_wire(event: Event[Lease], engine_id: str) -> pb.WatchLeasesResponse | None:
    match event:
        case Upserted(value=lease, revision=revision):
            if engine_id not in ("", lease.engine_id):
                return None
            if lease.state is LeaseState.ENDED:
                return pb.WatchLeasesResponse(revision=revision, ended=lease_to_wire(lease))
            return pb.WatchLeasesResponse(revision=revision, upserted=lease_to_wire(lease))
        case Synced(revision=revision):
            return pb.WatchLeasesResponse(revision=revision, synced=True)
        case _:
            # An ended lease that is forgotten: its end was told.
            return None
