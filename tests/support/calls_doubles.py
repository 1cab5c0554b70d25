"""Doubles of channels, replicas and watches, for tests of client calls."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
from grpc.aio import AioRpcError, Metadata

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import (
    Removed,
    Reset,
    Synced,
    Upserted,
)
from kvplane.client.calls import ServiceCalls, WatchEvent
from kvplane.client.engines import _event
from kvplane.client.replicas import Replicas
from tests.support.clock import FakeClock

Message = engine_pb2.WatchEnginesResponse


def rpc_error(code: grpc.StatusCode, *trailing: tuple[str, bytes]) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(*trailing), code.name, "")


class Channel:
    """Stands for a channel to one address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.closed = False
        self.state = grpc.ChannelConnectivity.READY

    def get_state(self) -> grpc.ChannelConnectivity:
        return self.state

    async def close(self, grace: float | None) -> None:
        self.closed = True


def replicas_of(
    target: str = "h:1", opened: list[Channel] | None = None, clock: FakeClock | None = None
) -> Replicas:
    """Replicas in the order in which they are named."""

    def dial(target: str, *, tls: Any = None) -> Any:
        del tls
        channel = Channel(target)
        if opened is not None:
            opened.append(channel)
        return channel

    return Replicas(target, dial=dial, shuffle=lambda _: None, clock=clock)


def calls_of(
    stub: Callable[[Any], Any], clock: FakeClock | None = None, target: str = "h:1"
) -> ServiceCalls[Any]:
    """Calls whose stub is what `stub` makes of an address."""
    return ServiceCalls(
        replicas=replicas_of(target),
        stub=lambda channel: stub(getattr(channel, "address", "")),
        timeout=5.0,
        clock=clock or ImpatientClock(),
    )


def itself(stub: Any) -> Any:
    return stub


class Watch:
    """A scripted watch: each call sends one list of messages; a status at its end is raised."""

    def __init__(self, *streams: Sequence[Message | grpc.StatusCode]) -> None:
        self.streams = list(streams)
        self.resumed_after: list[int] = []
        self.cancelled = 0

    def __call__(self, request: engine_pb2.WatchEnginesRequest) -> Any:
        self.resumed_after.append(request.after_revision)
        script = self.streams.pop(0)
        watch = self

        class Call:
            def __aiter__(self) -> AsyncIterator[Message]:
                return self.messages()

            async def messages(self) -> AsyncIterator[Message]:
                for one in script:
                    if isinstance(one, grpc.StatusCode):
                        raise rpc_error(one)
                    yield one

            def cancel(self) -> None:
                watch.cancelled += 1

        return Call()


def upserted(name: str, revision: int) -> Message:
    return Message(revision=revision, upserted=engine_pb2.Engine(name=name))


def synced(revision: int) -> Message:
    return Message(revision=revision, synced=True)


class ImpatientClock(FakeClock):
    """Moves time by itself whenever somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds > 30:  # How long a watch may be silent, which passes in no such test.
            await asyncio.Event().wait()
        self.slept.append(seconds)


def shown(event: WatchEvent[engine_pb2.Engine]) -> Any:
    match event:
        case Upserted(value, revision):
            return (value.name, revision)
        case Removed(name, _, revision):
            return (f"-{name}", revision)
        case Synced(revision):
            return revision
        case Reset():
            return "reset"


async def follow(watch: Watch, count: int, clock: FakeClock | None = None) -> list[Any]:
    events = calls_of(lambda _: watch, clock).watch(
        itself, lambda after: engine_pb2.WatchEnginesRequest(after_revision=after), _event
    )
    found: list[Any] = []
    async for event in events:
        found.append(shown(event))
        if len(found) == count:
            break
    await events.aclose()
    return found


THREE = "a:1,b:1,c:1"


UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
