"""An engine's link to the plane: registration and the heartbeat stream.

What the link promises:
- Every change of a retention reaches the plane at least once, in its latest form. A change is
  taken off only when the frame that carried it was answered.
- Trouble on the network never leaves `run`: the link backs off, opens a new stream, at another
  replica of the plane if there are several, and starts it with a full report. The engine keeps
  its registration, and serves on meanwhile.
- Durations in directives are counted from when the answered frame was sent.

What it does not promise: that a change is reported once only, or that the plane saw a
retention that began and ended between two frames.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client.addresses import normalize_targets
from kvplane.client.backoff import Backoff
from kvplane.client.channel import Tls
from kvplane.client.clock import Clock, SystemClock
from kvplane.client.engine_wire import directives_of, duration_of, frame_of, seconds_of
from kvplane.client.errors import FencedError, KvplaneClientError
from kvplane.client.frames import StreamEnded, exchange_within, until, wait_set, within
from kvplane.client.moving import here_or_elsewhere, leave_after, leave_ended
from kvplane.client.outage import Outage
from kvplane.client.registration import Registration, registration_of
from kvplane.client.retention import RetentionSource
from kvplane.client.timing import LinkTiming
from kvplane.client.transports import EngineTransport, HeartbeatStream

_log = logging.getLogger(__name__)


class _StreamOver(Exception):
    """The stream must be opened again; `register` if the engine must register first."""

    def __init__(self, *, register: bool) -> None:
        super().__init__()
        self.register = register


class EngineLink:
    """Registers one engine and keeps its heartbeat stream.

    Use from one event loop: `run()` in a task that you own, then `aclose()`. The loop may
    belong to a thread of a host that knows nothing of asyncio; nothing global is touched.

    Args:
        target: Address of EngineService, `host:port`; several, separated by commas, for a plane
            of several replicas.
        engine_id: Last part of the engine's resource name.
        engine: What to register.
        source: The engine's retentions and load.
        timing: Durations; the defaults suit a plane in the same network.
        tls: Encryption; None for none.
        clock: Time, for tests.
        transport: Replaces gRPC, for tests.
        on_registered: Called after each registration, in the event loop.

    Raises:
        ValueError: An address is not `host:port`.

    """

    def __init__(
        self,
        *,
        target: str,
        engine_id: str,
        engine: engine_pb2.Engine,
        source: RetentionSource,
        timing: LinkTiming | None = None,
        tls: Tls | None = None,
        clock: Clock | None = None,
        transport: EngineTransport | None = None,
        on_registered: Callable[[Registration], None] | None = None,
    ) -> None:
        self._target = normalize_targets(target)
        self._engine_id = engine_id
        self._engine = engine
        self._source = source
        self._timing = timing or LinkTiming()
        self._tls = tls
        self._clock: Clock = clock or SystemClock()
        self._transport = transport
        self._on_registered = on_registered
        self._backoff = Backoff(
            first=self._timing.first_backoff, longest=self._timing.longest_backoff
        )
        self._outage = Outage(log=_log, who=engine_id, target=self._target)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._request_id = str(uuid.uuid4())
        self._sequence = 0
        self._fenced = False
        self._registration: Registration | None = None
        self._drain_requested = False
        self._connected = False
        self._stream: HeartbeatStream | None = None

    def __repr__(self) -> str:
        """For logs."""
        state = "connected" if self._connected else "away"
        return f"EngineLink({self._engine_id!r}, {self._target!r}, {state})"

    @property
    def registration(self) -> Registration | None:
        """The latest registration; None before the first."""
        return self._registration

    @property
    def connected(self) -> bool:
        """Whether the latest heartbeat was answered."""
        return self._connected

    @property
    def drain_requested(self) -> bool:
        """Whether the plane asks the engine to drain, as of the latest answer."""
        return self._drain_requested

    def notify(self) -> None:
        """Something happened: send the next frame at once. From the loop's own thread only."""
        self._wake.set()

    def notify_threadsafe(self) -> None:
        """As `notify`, from any thread. Never blocks, and never raises."""
        loop = self._loop
        if loop is None:
            return  # Not running: the first frame is a full report anyway.
        try:
            loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:
            return  # The loop was closed under us: the link is over.

    async def run(self) -> None:
        """Serves the link until `aclose`, or until it is cancelled.

        Raises:
            FencedError: Another registration of this engine took this one's place. The process
                that runs this link must not claim the engine any more.

        """
        if not self._idle.is_set():
            raise RuntimeError("this link already runs")
        if self._closing.is_set():
            return
        self._idle.clear()
        self._loop = asyncio.get_running_loop()
        try:
            await until(self._closing, self._serve())
        finally:
            self._loop = None
            self._connected = False
            self._idle.set()

    async def aclose(self) -> None:
        """Stops `run` and takes the registration back; waits for the plane for a short while.

        Never raises for trouble with the plane: the registration then lapses by itself.
        Idempotent.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        await self._idle.wait()
        if self._transport is None:
            return
        try:
            if self._registration is not None and not self._fenced:
                await self._deregister(self._transport, self._registration)
        finally:
            await self._transport.aclose()

    async def _deregister(self, transport: EngineTransport, registration: Registration) -> None:
        request = engine_pb2.DeregisterEngineRequest(
            name=registration.name, epoch=registration.epoch
        )
        seconds = self._timing.close_timeout
        goodbye = here_or_elsewhere(
            lambda: transport.deregister(request, seconds=seconds), transport
        )
        try:
            await within(seconds, goodbye, clock=self._clock)
        except KvplaneClientError as error:
            _log.info("%s could not deregister and will lapse: %s", registration.name, error)

    async def _serve(self) -> None:
        transport = self._transport or self._dial()
        registration: Registration | None = None
        while True:
            if registration is None:
                try:
                    registration = await self._register(transport)
                except KvplaneClientError as error:
                    await self._after_trouble(transport, error)
                    continue
            try:
                await self._beat(transport, registration)
            except _StreamOver as over:
                self._connected = False
                if over.register:
                    registration = None
                # The first such wait is short; it grows if the plane asks again and again.
                await self._clock.sleep(self._backoff.next())
            except FencedError:
                self._fenced = True
                raise
            except StreamEnded:
                self._connected = False
                await leave_ended(transport, who=self._engine_id, log=_log)
                await self._clock.sleep(self._backoff.next())
            except KvplaneClientError as error:
                await self._after_trouble(transport, error)

    def _dial(self) -> EngineTransport:
        # gRPC starts threads, which a host that forks before `run` must not have.
        from kvplane.client.grpc_frames import GrpcEngineTransport  # noqa: PLC0415 - see above

        self._transport = GrpcEngineTransport(self._target, tls=self._tls)
        return self._transport

    async def _after_trouble(self, transport: EngineTransport, error: KvplaneClientError) -> None:
        self._connected = False
        await leave_after(error, transport, self._outage)
        await self._clock.sleep(max(self._backoff.next(), error.retry_after or 0.0))

    async def _register(self, transport: EngineTransport) -> Registration:
        seconds = self._timing.answer_timeout
        ttl = self._timing.registration_ttl
        request = engine_pb2.RegisterEngineRequest(
            engine_id=self._engine_id,
            engine=self._engine,
            ttl=None if ttl is None else duration_of(ttl),
            request_id=self._request_id,
        )
        answer = await within(
            seconds, transport.register(request, seconds=seconds), clock=self._clock
        )
        # The next registration is another one; a retry of this one was not needed.
        self._request_id = str(uuid.uuid4())
        registration = registration_of(answer)
        self._registration = registration
        _log.info("registered as %s, epoch %d", registration.name, registration.epoch)
        if self._on_registered is not None:
            self._on_registered(registration)
        return registration

    async def _beat(self, transport: EngineTransport, registration: Registration) -> None:
        stream = self._stream = transport.open()
        # An end is noticed at once, not at the next heartbeat.
        stream.on_over(lambda: self._wake.set() if self._stream is stream else None)
        full = True
        try:
            while True:
                # Cleared before the report is made: what happens later wakes the next wait.
                self._wake.clear()
                full, interval = await self._exchange(stream, registration, full=full)
                if not full:
                    await wait_set(self._wake, interval, clock=self._clock)
        finally:
            self._stream = None
            stream.cancel()

    async def _exchange(
        self, stream: HeartbeatStream, registration: Registration, *, full: bool
    ) -> tuple[bool, float]:
        """Sends one frame; returns whether the next must be full, and how long to wait."""
        self._sequence += 1
        report = self._source.full_report() if full else self._source.changes()
        sent_at = self._clock.now()
        frame = frame_of(
            report,
            self._source.load(),
            sequence=self._sequence,
            name=registration.name,
            epoch=registration.epoch,
            full=full,
            now=sent_at,
        )
        answer = await exchange_within(
            stream, frame, seconds=self._timing.answer_timeout, clock=self._clock
        )
        match answer.outcome:
            case engine_pb2.HEARTBEAT_OUTCOME_RENEWED:
                self._answered()
                self._source.acknowledge(report)
                self._drain_requested = answer.drain_requested
                directives = tuple(directives_of(answer.directives))
                if directives:
                    self._source.apply(directives, sent_at=sent_at)
                # A plane that names no interval must not make the engine spin.
                interval = seconds_of(answer.heartbeat_interval)
                return False, interval or registration.heartbeat_interval or 1.0
            case engine_pb2.HEARTBEAT_OUTCOME_FENCED:
                raise FencedError(
                    f"{registration.name}: another registration took the place of epoch "
                    f"{registration.epoch}; this process must stop or register anew",
                    code="FAILED_PRECONDITION",
                    reason="EPOCH_STALE",
                )
            case engine_pb2.HEARTBEAT_OUTCOME_FULL_REPORT_NEEDED if not full:
                return True, 0.0
            case _:
                raise _StreamOver(
                    register=answer.outcome != engine_pb2.HEARTBEAT_OUTCOME_FULL_REPORT_NEEDED
                )

    def _answered(self) -> None:
        self._outage.over()
        self._connected = True
        self._backoff.reset()
