"""An EngineService in process that answers as told, for tests of the engine's side."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc import aio

from kvplane.api.engine.v1 import engine_pb2, engine_pb2_grpc

Frame = engine_pb2.HeartbeatEngineRequest
Answer = engine_pb2.HeartbeatEngineResponse


class EngineServiceDouble(engine_pb2_grpc.EngineServiceServicer):
    """Grants what is asked and remembers every frame; `answer` may replace an answer.

    What `answer` returns is sent; None leaves the frame without an answer.
    """

    def __init__(self) -> None:
        self.registrations: list[engine_pb2.RegisterEngineRequest] = []
        self.deregistrations: list[engine_pb2.DeregisterEngineRequest] = []
        self.frames: list[Frame] = []
        self.epoch = 0
        self.heartbeat_interval = 0.05
        self.answer: Callable[[Frame, Answer], Answer | None] = lambda _, answer: answer
        self.arrived = asyncio.Condition()
        self.refuse_streams = 0

    async def RegisterEngine(self, request: Any, context: Any) -> Any:
        self.registrations.append(request)
        self.epoch += 1
        engine = engine_pb2.Engine()
        engine.CopyFrom(request.engine)
        engine.name = f"engines/{request.engine_id}"
        engine.epoch = self.epoch
        return engine_pb2.RegisterEngineResponse(
            engine=engine,
            ttl=Duration(seconds=30),
            heartbeat_interval=_duration(self.heartbeat_interval),
            lease_ttl=Duration(seconds=30),
        )

    async def DeregisterEngine(self, request: Any, context: Any) -> Any:
        self.deregistrations.append(request)
        return engine_pb2.DeregisterEngineResponse()

    async def HeartbeatEngine(
        self, request_iterator: AsyncIterator[Frame], context: Any
    ) -> AsyncIterator[Answer]:
        if self.refuse_streams:
            self.refuse_streams -= 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams")
        async for frame in request_iterator:
            async with self.arrived:
                self.frames.append(frame)
                self.arrived.notify_all()
            answer = self.answer(
                frame,
                Answer(
                    sequence=frame.sequence,
                    outcome=engine_pb2.HEARTBEAT_OUTCOME_RENEWED,
                    ttl=Duration(seconds=30),
                    heartbeat_interval=_duration(self.heartbeat_interval),
                ),
            )
            if answer is not None:
                yield answer

    async def DrainEngine(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not part of the double")

    ResumeEngine = GetEngine = ListEngines = DrainEngine

    async def WatchEngines(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not part of the double")
        yield

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition on what arrived holds."""
        async with self.arrived:
            await self.arrived.wait_for(condition)


async def serve(servicer: EngineServiceDouble, *, port: int = 0) -> tuple[aio.Server, int]:
    """Starts the double on loopback; returns the server and its port."""
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
