"""EngineService on the wire."""

from collections.abc import AsyncIterator

import grpc

from kvplane.api.engine.v1 import engine_pb2 as pb
from kvplane.api.engine.v1 import engine_pb2_grpc
from kvplane_services.durations import duration, seconds_of
from kvplane_services.engine.answers import HeartbeatOutcome
from kvplane_services.engine.directory import EngineDirectory
from kvplane_services.engine.model import Engine, EngineState
from kvplane_services.engine.wire import (
    engine_from_wire,
    engine_id_of,
    engine_to_wire,
    load_from_wire,
    role_of,
)
from kvplane_services.lease.manager import LeaseManager
from kvplane_services.lease.reports import ReportAnswer
from kvplane_services.lease.wire import directive_to_wire, report_from_wire
from kvplane_services.store.model import Removed, Synced, Upserted
from kvplane_services.store.paging import PageRequest

_OUTCOMES = {
    HeartbeatOutcome.RENEWED: pb.HEARTBEAT_OUTCOME_RENEWED,
    HeartbeatOutcome.FENCED: pb.HEARTBEAT_OUTCOME_FENCED,
    HeartbeatOutcome.NOT_FOUND: pb.HEARTBEAT_OUTCOME_NOT_FOUND,
}


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """Translates and calls; errors are translated by the server's interceptor."""

    def __init__(self, *, directory: EngineDirectory, manager: LeaseManager) -> None:
        self._directory = directory
        self._manager = manager

    async def RegisterEngine(
        self, request: pb.RegisterEngineRequest, context: grpc.ServicerContext
    ) -> pb.RegisterEngineResponse:
        """See engine.proto."""
        registration = await self._directory.register(
            engine_from_wire(request.engine, engine_id=request.engine_id),
            ttl=seconds_of(request.ttl),
            request_id=request.request_id,
        )
        await self._manager.observe(registration.engine)
        return pb.RegisterEngineResponse(
            engine=self._message(registration.engine),
            ttl=duration(registration.ttl),
            heartbeat_interval=duration(self._interval(registration.heartbeat_interval)),
            lease_ttl=duration(self._manager.config.ttl),
        )

    async def HeartbeatEngine(
        self,
        request_iterator: AsyncIterator[pb.HeartbeatEngineRequest],
        context: grpc.ServicerContext,
    ) -> AsyncIterator[pb.HeartbeatEngineResponse]:
        """See engine.proto."""
        first = True
        async for request in request_iterator:
            yield await self._heartbeat(request, first=first)
            first = False

    async def DrainEngine(
        self, request: pb.DrainEngineRequest, context: grpc.ServicerContext
    ) -> pb.DrainEngineResponse:
        """See engine.proto."""
        engine = await self._directory.drain(engine_id_of(request.name))
        return pb.DrainEngineResponse(engine=self._message(engine))

    async def ResumeEngine(
        self, request: pb.ResumeEngineRequest, context: grpc.ServicerContext
    ) -> pb.ResumeEngineResponse:
        """See engine.proto."""
        engine = await self._directory.resume(engine_id_of(request.name))
        return pb.ResumeEngineResponse(engine=self._message(engine))

    async def DeregisterEngine(
        self, request: pb.DeregisterEngineRequest, context: grpc.ServicerContext
    ) -> pb.DeregisterEngineResponse:
        """See engine.proto."""
        engine_id = engine_id_of(request.name)
        await self._directory.deregister(engine_id, request.epoch)
        await self._manager.observe_gone(engine_id)
        return pb.DeregisterEngineResponse()

    async def GetEngine(
        self, request: pb.GetEngineRequest, context: grpc.ServicerContext
    ) -> pb.GetEngineResponse:
        """See engine.proto."""
        engine = self._directory.get(engine_id_of(request.name))
        return pb.GetEngineResponse(engine=self._message(engine))

    async def ListEngines(
        self, request: pb.ListEnginesRequest, context: grpc.ServicerContext
    ) -> pb.ListEnginesResponse:
        """See engine.proto."""
        page = await self._directory.list(
            PageRequest(request.page_size, request.page_token),
            role=role_of(request.role, field="role") if request.role else None,
            model=request.model,
        )
        return pb.ListEnginesResponse(
            engines=[self._message(engine) for engine in page.items],
            next_page_token=page.next_token,
            revision=page.revision,
        )

    async def WatchEngines(
        self, request: pb.WatchEnginesRequest, context: grpc.ServicerContext
    ) -> AsyncIterator[pb.WatchEnginesResponse]:
        """See engine.proto."""
        async for event in self._directory.watch(after=request.after_revision):
            match event:
                case Upserted(value=engine, revision=revision):
                    yield pb.WatchEnginesResponse(
                        revision=revision, upserted=engine_to_wire(engine)
                    )
                case Removed(key=key, revision=revision):
                    yield pb.WatchEnginesResponse(revision=revision, removed_name=f"engines/{key}")
                case Synced(revision=revision):
                    yield pb.WatchEnginesResponse(revision=revision, synced=True)
                case _:
                    pass

    async def _heartbeat(
        self, request: pb.HeartbeatEngineRequest, *, first: bool
    ) -> pb.HeartbeatEngineResponse:
        engine_id = engine_id_of(request.name)
        report = report_from_wire(request)
        load = load_from_wire(request.load) if request.HasField("load") else None
        beat = await self._directory.heartbeat(engine_id, request.epoch, load)
        outcome = _OUTCOMES[beat.outcome]
        answer = ReportAnswer()
        if beat.engine is not None:
            answer = await self._manager.report(beat.engine, report)
            if answer.full_report_needed or (first and not request.full_report):
                outcome = pb.HEARTBEAT_OUTCOME_FULL_REPORT_NEEDED
        return pb.HeartbeatEngineResponse(
            sequence=request.sequence,
            outcome=outcome,
            ttl=duration(beat.ttl),
            heartbeat_interval=duration(self._interval(beat.heartbeat_interval)),
            directives=[directive_to_wire(directive) for directive in answer.directives],
            drain_requested=beat.drain_requested,
        )

    def _message(self, engine: Engine) -> pb.Engine:
        # Nothing comes from a lost one, though the replica that lost it still remembers it.
        lost = engine.state is EngineState.LOST
        replica = "" if lost else self._directory.home_of(engine.engine_id)
        return engine_to_wire(engine, replica=replica)

    def _interval(self, wanted: float) -> float:
        # Renewals ride on heartbeats, so these may not be rarer.
        return min(wanted, self._manager.config.renew_interval / 2)
