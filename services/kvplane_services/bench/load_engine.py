"""A simulated engine that only reports retentions and does what it is told: cheap, by thousands."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from kvplane.api.engine.v1 import engine_pb2 as pb
from kvplane_services.bench.workload import MODEL, Workload, session_of
from kvplane_services.clock import Clock, wait_set
from kvplane_services.durations import seconds_of

_ROOM = 4
_ANSWER_PATIENCE = 120.0


class BenchError(RuntimeError):
    """The plane did not do what the benchmark counts on; the message is for whoever runs it."""


@dataclass(slots=True)
class Tally:
    """What all engines were told so far, and when."""

    granted: int = 0
    renewed: int = 0
    released: int = 0
    # Time and count of grants, and of releases, at each answer that brought some.
    grants: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    releases: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])


class Gate:
    """Lets engines speak, or not."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def shut(self) -> None:
        """No engine begins a frame from here on."""
        self._open.clear()

    def open(self) -> None:
        """All go on."""
        self._open.set()

    async def passed(self) -> None:
        """Returns once the gate is open."""
        await self._open.wait()


class LoadEngine:
    """One registered engine with one heartbeat stream, as the contract asks.

    Frames go at once when there is news, one at a time, and otherwise as often as the plane
    says. What comes up while a frame is under way goes with the next.

    Args:
        engine_id: Its name.
        stub: `EngineServiceStub` of the replica that it speaks to.
        workload: What its turns leave.
        sessions: How many leases it must have room for.
        refresh: Whether handles say an expiry, and are reported again with each renewal.
        tally: Counts what it is told.
        gate: Whether it may speak.
        clock: Time.
        on_sent: Told the name of each new retention when the frame with it is sent.

    """

    def __init__(
        self,
        *,
        engine_id: str,
        stub: Any,
        workload: Workload,
        sessions: int,
        refresh: bool,
        tally: Tally,
        gate: Gate,
        clock: Clock,
        on_sent: Callable[[str], None],
    ) -> None:
        self.name = f"engines/{engine_id}"
        self._engine_id = engine_id
        self._stub = stub
        self._workload = workload
        self._sessions = sessions
        self._refresh = refresh
        self._tally = tally
        self._gate = gate
        self._clock = clock
        self._on_sent = on_sent
        self._turns: deque[tuple[int, int]] = deque()
        self._ended: list[pb.RetentionEnd] = []
        self._renewed: list[pb.LeaseDirective] = []
        self._ungranted: set[str] = set()
        self._wake = asyncio.Event()
        self._sequence = 0
        self._epoch = 0
        self._interval = 1.0
        # Name of a lease that it was granted lately.
        self.lease = ""

    async def register(self, number: int) -> None:
        """Registers as a decode engine. Raises BenchError."""
        host = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        total_blocks = max(1, self._sessions) * self._workload.blocks * _ROOM
        request = pb.RegisterEngineRequest(
            engine_id=self._engine_id,
            engine=pb.Engine(
                role=pb.ROLE_DECODE,
                endpoint=f"http://{host}:8000",
                models=[MODEL],
                nixl=pb.NixlAddress(host=host, port=5600, engine_id=self._engine_id),
                layout=pb.KvLayout(block_size=16, total_blocks=total_blocks, dtype="bfloat16"),
                build=pb.EngineBuild(
                    connector=pb.EngineBuild.CONNECTOR_KVPLANE,
                    connector_version="0.1.0",
                    vllm_version="0.32.0",
                ),
            ),
        )
        try:
            answer = await self._stub.RegisterEngine(request, wait_for_ready=True, timeout=60)
        except grpc.aio.AioRpcError as error:
            raise BenchError(f"{self.name} could not register: {error.details()}") from error
        self._epoch = answer.engine.epoch

    def submit(self, session: int, turn: int) -> None:
        """A turn finished, and its blocks stay."""
        self._turns.append((session, turn))
        self._wake.set()

    @property
    def pending(self) -> int:
        """Turns without a lease yet."""
        return len(self._turns) + len(self._ungranted)

    async def run(self, *, batch: int) -> None:
        """Beats until cancelled; at most `batch` new retentions a frame. Raises BenchError."""
        stream = self._stub.HeartbeatEngine()
        first = True
        try:
            while True:
                await self._gate.passed()
                self._wake.clear()
                frame = self._frame(batch, full=first)
                await stream.write(frame)
                async with asyncio.timeout(_ANSWER_PATIENCE):
                    answer = await stream.read()
                if not isinstance(answer, pb.HeartbeatEngineResponse):
                    raise BenchError(f"the plane ended the stream of {self.name}")
                self._take(answer)
                first = False
                if not self._turns and not self._ended and not self._renewed:
                    await wait_set(self._wake, self._interval, clock=self._clock)
        except grpc.aio.AioRpcError as error:
            raise BenchError(f"the stream of {self.name} broke: {error.details()}") from error
        except TimeoutError as error:
            raise BenchError(
                f"the plane left {self.name} without an answer for {_ANSWER_PATIENCE:.0f} s"
            ) from error
        finally:
            stream.cancel()

    def _frame(self, batch: int, *, full: bool) -> pb.HeartbeatEngineRequest:
        self._sequence += 1
        begun: list[pb.Retention] = []
        while self._turns and len(begun) < batch:
            retention = self._workload.retention(*self._turns.popleft())
            self._ungranted.add(retention.retention_id)
            self._on_sent(retention.retention_id)
            begun.append(retention)
        begun.extend(self._refreshed())
        ended, self._ended = self._ended, []
        return pb.HeartbeatEngineRequest(
            sequence=self._sequence,
            name=self.name,
            epoch=self._epoch,
            load=pb.EngineLoad(running_requests=1),
            full_report=full,
            retentions=begun,
            ended=ended,
        )

    def _refreshed(self) -> list[pb.Retention]:
        renewed, self._renewed = self._renewed, []
        found: list[pb.Retention] = []
        for directive in renewed:
            now = self._clock.now()
            ttl = seconds_of(directive.renew)
            retention = self._workload.retention(
                *session_of(directive.retention_id), expiry=round(now + ttl, 3)
            )
            retention.lease = directive.lease
            retention.fencing_token = directive.fencing_token
            found.append(retention)
        return found

    def _take(self, answer: pb.HeartbeatEngineResponse) -> None:
        if answer.outcome != pb.HEARTBEAT_OUTCOME_RENEWED:
            outcome = pb.HeartbeatOutcome.Name(answer.outcome)
            raise BenchError(f"the plane answered a heartbeat of {self.name} with {outcome}")
        self._interval = seconds_of(answer.heartbeat_interval) or self._interval
        granted = released = 0
        for directive in answer.directives:
            if directive.HasField("release"):
                if directive.retention_id in self._ungranted:
                    raise BenchError(f"the plane refused {self.name} a lease: its log says why")
                released += 1
                self._ended.append(
                    pb.RetentionEnd(retention_id=directive.retention_id, reason=directive.release)
                )
            elif directive.retention_id in self._ungranted:
                self._ungranted.remove(directive.retention_id)
                self.lease = directive.lease
                granted += 1
            elif self._refresh:
                self._renewed.append(directive)
        self._count(len(answer.directives) - granted - released, granted, released)

    def _count(self, renewed: int, granted: int, released: int) -> None:
        tally, now = self._tally, self._clock.now()
        tally.renewed += renewed
        if granted:
            tally.granted += granted
            tally.grants.append((now, tally.granted))
        if released:
            tally.released += released
            tally.releases.append((now, tally.released))
