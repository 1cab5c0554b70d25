"""SessionService on the wire."""

from collections.abc import AsyncIterator, Iterable
from collections.abc import Set as AbstractSet

import grpc

from kvplane.api.session.v1 import session_pb2 as pb
from kvplane.api.session.v1 import session_pb2_grpc
from kvplane_services.durations import duration, seconds_of
from kvplane_services.errors import InvalidRequest
from kvplane_services.session.model import SessionKey
from kvplane_services.session.registry import SessionRegistry
from kvplane_services.session.wire import hints_from_wire, key_from_wire, session_to_wire
from kvplane_services.store.model import Removed, Synced, Upserted
from kvplane_services.store.paging import PageRequest

# What each path of an update mask sets.
_MASKS = {
    "hints": ("keep_for", "final_turn"),
    "hints.keep_for": ("keep_for",),
    "hints.final_turn": ("final_turn",),
}


class SessionServicer(session_pb2_grpc.SessionServiceServicer):
    """Translates and calls; errors are translated by the server's interceptor."""

    def __init__(self, *, registry: SessionRegistry) -> None:
        self._registry = registry

    async def CreateSession(
        self, request: pb.CreateSessionRequest, context: grpc.ServicerContext
    ) -> pb.CreateSessionResponse:
        """See session.proto."""
        session, ttl = await self._registry.create(
            key_from_wire(request.session.key),
            hints=hints_from_wire(request.session.hints),
            ttl=seconds_of(request.ttl),
            request_id=request.request_id,
        )
        return pb.CreateSessionResponse(session=session_to_wire(session), ttl=duration(ttl))

    async def GetSession(
        self, request: pb.GetSessionRequest, context: grpc.ServicerContext
    ) -> pb.GetSessionResponse:
        """See session.proto."""
        session = self._registry.get(SessionKey.parse(request.name))
        return pb.GetSessionResponse(session=session_to_wire(session))

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: grpc.ServicerContext
    ) -> pb.ListSessionsResponse:
        """See session.proto."""
        page = await self._registry.list(
            PageRequest(request.page_size, request.page_token),
            tenant=request.tenant,
            model=request.model,
            engine=request.engine,
        )
        return pb.ListSessionsResponse(
            sessions=[session_to_wire(session) for session in page.items],
            next_page_token=page.next_token,
            revision=page.revision,
        )

    async def UpdateSession(
        self, request: pb.UpdateSessionRequest, context: grpc.ServicerContext
    ) -> pb.UpdateSessionResponse:
        """See session.proto."""
        hints = hints_from_wire(request.session.hints)
        named = _named_hints(request.update_mask.paths)
        session = await self._registry.update(
            SessionKey.parse(request.session.name),
            keep_for=hints.keep_for if "keep_for" in named else None,
            final_turn=hints.final_turn if "final_turn" in named else None,
            etag=request.session.etag,
        )
        return pb.UpdateSessionResponse(session=session_to_wire(session))

    async def DeleteSession(
        self, request: pb.DeleteSessionRequest, context: grpc.ServicerContext
    ) -> pb.DeleteSessionResponse:
        """See session.proto."""
        await self._registry.delete(SessionKey.parse(request.name), etag=request.etag)
        return pb.DeleteSessionResponse()

    async def TouchSession(
        self, request: pb.TouchSessionRequest, context: grpc.ServicerContext
    ) -> pb.TouchSessionResponse:
        """See session.proto."""
        session, kept = await self._registry.touch(
            SessionKey.parse(request.name), seconds_of(request.keep_for)
        )
        return pb.TouchSessionResponse(session=session_to_wire(session), keep_for=duration(kept))

    async def EndSession(
        self, request: pb.EndSessionRequest, context: grpc.ServicerContext
    ) -> pb.EndSessionResponse:
        """See session.proto."""
        session = await self._registry.end(SessionKey.parse(request.name))
        return pb.EndSessionResponse(session=session_to_wire(session))

    async def WatchSessions(
        self, request: pb.WatchSessionsRequest, context: grpc.ServicerContext
    ) -> AsyncIterator[pb.WatchSessionsResponse]:
        """See session.proto."""
        async for event in self._registry.watch(after=request.after_revision):
            match event:
                case Upserted(value=session, revision=revision):
                    message = session_to_wire(session)
                    yield pb.WatchSessionsResponse(revision=revision, upserted=message)
                case Removed(key=name, revision=revision):
                    yield pb.WatchSessionsResponse(revision=revision, removed_name=name)
                case Synced(revision=revision):
                    yield pb.WatchSessionsResponse(revision=revision, synced=True)
                case _:
                    pass


def _named_hints(paths: Iterable[str]) -> AbstractSet[str]:
    named: set[str] = set()
    for path in paths:
        if path not in _MASKS:
            raise InvalidRequest(
                f"update_mask names {path!r}: only {', '.join(_MASKS)} can be updated",
                field="update_mask",
            )
        named.update(_MASKS[path])
    if not named:
        raise InvalidRequest(
            f"update_mask is required: name {', '.join(_MASKS)}", field="update_mask"
        )
    return named
