"""A plane, an engine's retentions and a running link, for tests of links."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import (
    Directive,
    EngineLink,
    EngineLoad,
    LinkTiming,
    Retention,
    RetentionLog,
    SessionKey,
)
from kvplane.client.engine_wire import duration_of
from tests.support.clock import FakeClock
from tests.support.frame_streams import TransportDouble

Frame = engine_pb2.HeartbeatEngineRequest
Answer = engine_pb2.HeartbeatEngineResponse

RENEWED = engine_pb2.HEARTBEAT_OUTCOME_RENEWED


class Source(RetentionLog):
    """Keeps the directives."""

    def __init__(self) -> None:
        super().__init__()
        self.applied: list[tuple[Directive, float]] = []

    def load(self) -> EngineLoad:
        return EngineLoad(running_requests=3, retentions=len(self.held))

    def apply(self, directives: Sequence[Directive], *, sent_at: float) -> None:
        self.applied.extend((one, sent_at) for one in directives)


def retention(name: str) -> Retention:
    return Retention(
        retention_id=name,
        session_key=SessionKey("default", "m", "", name),
        tokens=16,
        blocks=1,
        kv_transfer_params=b"{}",
        deadline=1030.0,
    )


class Plane:
    """Registers everybody; answers with RENEWED unless `script` says otherwise."""

    def __init__(self) -> None:
        self.requests: list[engine_pb2.RegisterEngineRequest] = []
        self.register_errors: list[Exception] = []
        self.script: Callable[[Frame, Answer], None] = lambda _, __: None
        self.transport = TransportDouble(self._answer, register=self._register)

    @property
    def frames(self) -> list[Frame]:
        return self.transport.frames

    def _register(self, request: engine_pb2.RegisterEngineRequest) -> Any:
        self.requests.append(request)
        if self.register_errors:
            raise self.register_errors.pop(0)
        return engine_pb2.RegisterEngineResponse(
            engine=engine_pb2.Engine(
                name=f"engines/{request.engine_id}", epoch=100 + len(self.requests)
            ),
            ttl=duration_of(30),
            heartbeat_interval=duration_of(10),
            lease_ttl=duration_of(25),
        )

    def _answer(self, frame: Frame) -> Answer:
        answer = Answer(
            sequence=frame.sequence, outcome=RENEWED, heartbeat_interval=duration_of(10)
        )
        self.script(frame, answer)
        return answer


def outcomes(*values: int) -> Callable[[Frame, Answer], None]:
    """A script that answers with these outcomes in turn, then RENEWED."""
    left = list(values)

    def script(_: Frame, answer: Answer) -> None:
        if left:
            answer.outcome = engine_pb2.HeartbeatOutcome.ValueType(left.pop(0))

    return script


def link_to(plane: Plane, source: Source, clock: FakeClock, **options: Any) -> EngineLink:
    return EngineLink(
        target=options.pop("target", "127.0.0.1:1"),
        engine_id="decode-0",
        engine=engine_pb2.Engine(role=engine_pb2.ROLE_DECODE),
        source=source,
        timing=LinkTiming(answer_timeout=5.0, first_backoff=1.0, longest_backoff=4.0),
        clock=clock,
        transport=plane.transport,
        **options,
    )


@asynccontextmanager
async def running(link: EngineLink, clock: FakeClock) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(link.run())
        await clock.advance(0)
        try:
            yield
        finally:
            await link.aclose()
