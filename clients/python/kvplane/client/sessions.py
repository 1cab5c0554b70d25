"""Sessions: which conversation is where, and hints on its future."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from google.protobuf.field_mask_pb2 import FieldMask

from kvplane.api.session.v1 import session_pb2, session_pb2_grpc
from kvplane.client.calls import Removed, ServiceCalls, Synced, Upserted, WatchEvent
from kvplane.client.clock import Clock
from kvplane.client.engine_wire import duration_of
from kvplane.client.names import SessionKey, engine_name
from kvplane.client.replicas import Replicas

if TYPE_CHECKING:
    import grpc.aio

    from kvplane.api.session.v1.session_pb2_grpc import SessionServiceAsyncStub

Session = session_pb2.Session


class Sessions:
    """SessionService. Sessions are given by resource name or key. Raises KvplaneClientError."""

    def __init__(self, replicas: Replicas, *, timeout: float, clock: Clock) -> None:
        self._calls = ServiceCalls(replicas=replicas, stub=_stub, timeout=timeout, clock=clock)

    async def create(
        self,
        key: SessionKey,
        *,
        keep_for: float = 0.0,
        ttl: float | None = None,
        request_id: str = "",
    ) -> Session:
        """Creates a session before its first turn. Raises AlreadyExistsError.

        Args:
            key: The conversation.
            keep_for: Seconds to keep its leases by wish; 0 for no wish.
            ttl: Idle seconds after which it is forgotten; None for the plane's default.
            request_id: UUID4 that makes retries return the first answer.

        """
        request = session_pb2.CreateSessionRequest(
            session=Session(
                key=session_pb2.SessionKey(**key._asdict()),
                hints=session_pb2.SessionHints(keep_for=duration_of(keep_for)),
            ),
            ttl=None if ttl is None else duration_of(ttl),
            request_id=request_id,
        )
        return (
            await self._calls.call(
                lambda stub: stub.CreateSession, request, repeat=bool(request_id)
            )
        ).session

    async def get(self, session: str | SessionKey) -> Session:
        """Gets one session. Raises NotFoundError if there is none."""
        request = session_pb2.GetSessionRequest(name=_name(session))
        return (await self._calls.call(lambda stub: stub.GetSession, request, repeat=True)).session

    def list(
        self, *, tenant: str = "", model: str = "", engine: str = "", page_size: int = 0
    ) -> AsyncGenerator[Session, None]:
        """Iterates over the sessions by name, only those that match what is given."""
        request = session_pb2.ListSessionsRequest(
            tenant=tenant,
            model=model,
            engine=engine_name(engine) if engine else "",
            page_size=page_size,
        )
        return self._calls.pages(
            lambda stub: stub.ListSessions, request, lambda page: page.sessions
        )

    async def update_hints(
        self, session: str | SessionKey, hints: session_pb2.SessionHints, *, etag: str = ""
    ) -> Session:
        """Replaces a session's hints. Raises ConflictError if `etag` is given and stale."""
        request = session_pb2.UpdateSessionRequest(
            session=Session(name=_name(session), hints=hints, etag=etag),
            update_mask=FieldMask(paths=["hints"]),
        )
        return (
            await self._calls.call(lambda stub: stub.UpdateSession, request, repeat=not etag)
        ).session

    async def touch(
        self, session: str | SessionKey, *, keep_for: float = 0.0
    ) -> session_pb2.TouchSessionResponse:
        """Says "I shall be back" within `keep_for` seconds; 0 for the plane's default.

        The answer's `keep_for` is what was granted; zero means that nothing is left to keep.
        """
        request = session_pb2.TouchSessionRequest(
            name=_name(session), keep_for=duration_of(keep_for)
        )
        return await self._calls.call(lambda stub: stub.TouchSession, request, repeat=True)

    async def end(self, session: str | SessionKey) -> Session:
        """Says "I am done": releases the session's lease. Idempotent."""
        request = session_pb2.EndSessionRequest(name=_name(session))
        return (await self._calls.call(lambda stub: stub.EndSession, request, repeat=True)).session

    async def delete(self, session: str | SessionKey, *, etag: str = "") -> None:
        """Forgets a session and releases its lease. Idempotent."""
        request = session_pb2.DeleteSessionRequest(name=_name(session), etag=etag)
        await self._calls.call(lambda stub: stub.DeleteSession, request, repeat=True)

    def watch(self) -> AsyncGenerator[WatchEvent[Session], None]:
        """The sessions, then every change, over reconnects; see `ServiceCalls.watch`."""
        return self._calls.watch(
            lambda stub: stub.WatchSessions,
            lambda after: session_pb2.WatchSessionsRequest(after_revision=after),
            _event,
        )


def _name(session: str | SessionKey) -> str:
    return session.name if isinstance(session, SessionKey) else session


def _event(message: session_pb2.WatchSessionsResponse) -> WatchEvent[Session] | None:
    match message.WhichOneof("event"):
        case "upserted":
            return Upserted(message.upserted, message.revision)
        case "removed_name":
            return Removed(message.removed_name, None, message.revision)
        case "synced":
            return Synced(message.revision)
        case _:
            return None


def _stub(channel: "grpc.aio.Channel") -> "SessionServiceAsyncStub":
    return session_pb2_grpc.SessionServiceStub(channel)
