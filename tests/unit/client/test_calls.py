"""Pages and watches, on virtual time and without a network."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import (
    InvalidRequestError,
    KvplaneClientError,
    NotFoundError,
    Removed,
    Reset,
    Synced,
    Upserted,
)
from kvplane.client.calls import ServiceCalls, WatchEvent
from kvplane.client.engines import _event
from tests.support.clock import FakeClock

Message = engine_pb2.WatchEnginesResponse


class Cut(Exception):
    """Stands for a gRPC status in a script."""


def rpc_error(code: grpc.StatusCode) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), code.name, "")


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
    calls = ServiceCalls(target="t", timeout=1.0, clock=clock or ImpatientClock())
    events = calls.watch(
        watch, lambda after: engine_pb2.WatchEnginesRequest(after_revision=after), _event
    )
    found: list[Any] = []
    async for event in events:
        found.append(shown(event))
        if len(found) == count:
            break
    await events.aclose()
    return found


async def test_watch_resumes_where_it_was_cut() -> None:
    """After the initial state a cut loses nothing and repeats nothing."""
    watch = Watch(
        [upserted("a", 3), upserted("b", 7), synced(9), upserted("c", 11)],
        [upserted("d", 12), Message(revision=13, removed_name="a")],
    )
    assert await follow(watch, 6) == [("a", 3), ("b", 7), 9, ("c", 11), ("d", 12), ("-a", 13)]
    assert watch.resumed_after == [0, 11]
    assert watch.cancelled == 2


async def test_bookmarks_move_the_resume_point() -> None:
    """A later `synced` says that nothing up to it is missing."""
    watch = Watch([synced(9), synced(40)], [upserted("a", 41)])
    assert await follow(watch, 3) == [9, 40, ("a", 41)]
    assert watch.resumed_after == [0, 40]


async def test_cut_in_the_initial_state_starts_over() -> None:
    """A state that was cut in the middle is sent again from its beginning, and said to be."""
    watch = Watch(
        [upserted("a", 7), upserted("b", 3), grpc.StatusCode.UNAVAILABLE],
        [upserted("b", 3), synced(9)],
    )
    assert await follow(watch, 5) == [("a", 7), ("b", 3), "reset", ("b", 3), 9]
    assert watch.resumed_after == [0, 0]


async def test_compacted_watch_starts_over() -> None:
    """A plane that no longer has the changes since is asked for its whole state."""
    watch = Watch(
        [upserted("a", 3), synced(9)],
        [grpc.StatusCode.OUT_OF_RANGE],
        [upserted("b", 90), synced(99)],
    )
    assert await follow(watch, 5) == [("a", 3), 9, "reset", ("b", 90), 99]
    assert watch.resumed_after == [0, 9, 0]


async def test_slow_reader_and_restarts_are_survived_with_growing_waits() -> None:
    """Transient trouble is waited out; waits grow until something arrives."""
    clock = ImpatientClock()
    trouble = [[grpc.StatusCode.UNAVAILABLE]] * 6 + [[grpc.StatusCode.RESOURCE_EXHAUSTED]]
    watch = Watch(*trouble, [synced(1)])
    assert await follow(watch, 1, clock) == [1]
    assert len(clock.slept) == 7
    assert clock.slept[0] <= 0.1
    assert 1.5 <= clock.slept[-1] <= 3.0


async def test_refused_watch_raises() -> None:
    """What repeating cannot help is raised, with the address."""
    with pytest.raises(InvalidRequestError) as caught:
        await follow(Watch([grpc.StatusCode.INVALID_ARGUMENT]), 1)
    assert caught.value.metadata == {"target": "t"}


async def test_compaction_of_a_fresh_watch_raises() -> None:
    """A plane that cannot even send its present state is not asked for ever."""
    with pytest.raises(KvplaneClientError):
        await follow(Watch([grpc.StatusCode.OUT_OF_RANGE]), 1)


async def test_unknown_events_are_skipped() -> None:
    """Events of a newer plane are not shown, and still move the resume point."""
    watch = Watch([synced(1), Message(revision=5)], [upserted("a", 6)])
    assert await follow(watch, 2) == [1, ("a", 6)]
    assert watch.resumed_after == [0, 5]


async def test_lists_follow_pages() -> None:
    """All pages are read, in order, and only as far as somebody reads."""
    asked: list[str] = []

    async def list_engines(request: Any, **_: float) -> Any:
        asked.append(request.page_token)
        number = int(request.page_token or 0)
        return engine_pb2.ListEnginesResponse(
            engines=[engine_pb2.Engine(name=f"engines/{number}")],
            next_page_token=str(number + 1) if number < 2 else "",
        )

    calls = ServiceCalls(target="t", timeout=1.0, clock=FakeClock())
    pages = calls.pages(list_engines, engine_pb2.ListEnginesRequest(), lambda page: page.engines)
    first = await anext(pages)
    assert (first.name, asked) == ("engines/0", [""])
    assert [one.name async for one in pages] == ["engines/1", "engines/2"]
    assert asked == ["", "1", "2"]


async def test_failed_call_is_the_clients_error() -> None:
    """gRPC's exception does not leave the client."""

    async def get(request: Any, **_: float) -> Any:
        raise rpc_error(grpc.StatusCode.NOT_FOUND)

    calls = ServiceCalls(target="t", timeout=1.0, clock=FakeClock())
    with pytest.raises(NotFoundError):
        await calls.call(get, engine_pb2.GetEngineRequest())
