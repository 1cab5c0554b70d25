"""Calls, pages and watches at one replica and at several, on virtual time and without a network."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError, Metadata

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import (
    AnswerTimeoutError,
    InvalidRequestError,
    KvplaneClientError,
    NotFoundError,
    Removed,
    Reset,
    Synced,
    UnavailableError,
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
    assert caught.value.metadata == {"target": "h:1"}


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

    pages = calls_of(lambda _: list_engines).pages(
        itself, engine_pb2.ListEnginesRequest(), lambda page: page.engines
    )
    first = await anext(pages)
    assert (first.name, asked) == ("engines/0", [""])
    assert [one.name async for one in pages] == ["engines/1", "engines/2"]
    assert asked == ["", "1", "2"]


async def test_failed_call_is_the_clients_error() -> None:
    """gRPC's exception does not leave the client."""

    async def get(request: Any, **_: float) -> Any:
        raise rpc_error(grpc.StatusCode.NOT_FOUND)

    with pytest.raises(NotFoundError):
        await calls_of(lambda _: get).call(itself, engine_pb2.GetEngineRequest(), repeat=True)


THREE = "a:1,b:1,c:1"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Plane:
    """Three replicas; those in `failing` fail so, and all remember who was asked."""

    def __init__(self, failing: dict[str, AioRpcError]) -> None:
        self.failing = failing
        self.asked: list[str] = []
        self.clock = ImpatientClock()
        self.calls = calls_of(self._at, self.clock, THREE)

    def _at(self, address: str) -> Any:
        async def call(_: Any, **options: float) -> str:
            assert 0 < options["timeout"] <= 5.0
            self.asked.append(address)
            if address in self.failing:
                raise self.failing[address]
            return f"from {address}"

        return call

    async def call(self, *, repeat: bool = True) -> str:
        answer: str = await self.calls.call(itself, None, repeat=repeat)
        return answer


def said_by_the_plane() -> AioRpcError:
    """Unavailable, for a reason that the plane gives."""
    info = error_details_pb2.ErrorInfo(reason="UNAVAILABLE", domain="kvplane")
    status = status_pb2.Status(code=14)
    status.details.add().Pack(info)
    return rpc_error(UNAVAILABLE, ("grpc-status-details-bin", status.SerializeToString()))


async def test_call_goes_to_another_replica_at_once() -> None:
    """Where the replica in use is away another one answers, and gets the next calls too."""
    plane = Plane({"a:1": rpc_error(UNAVAILABLE)})
    assert await plane.call() == "from b:1"
    assert await plane.call() == "from b:1"
    assert plane.asked == ["a:1", "b:1", "b:1"]
    assert plane.clock.slept == []


async def test_call_that_may_not_be_repeated_is_not() -> None:
    """A call whose effect must not come twice fails, and the next one goes elsewhere."""
    plane = Plane({"a:1": rpc_error(UNAVAILABLE)})
    with pytest.raises(UnavailableError) as caught:
        await plane.call(repeat=False)
    assert caught.value.metadata["target"] == THREE
    assert await plane.call(repeat=False) == "from b:1"


async def test_plane_that_is_away_is_asked_a_few_times() -> None:
    """With every replica away a call fails soon: each was asked once, and then after waits."""
    away = rpc_error(UNAVAILABLE)
    plane = Plane({"a:1": away, "b:1": away, "c:1": away})
    with pytest.raises(UnavailableError):
        await plane.call()
    assert plane.asked == ["a:1", "b:1", "c:1", "a:1", "b:1"]
    assert len(plane.clock.slept) == 2
    assert sum(plane.clock.slept) < 0.5


async def test_what_the_plane_says_is_asked_of_each_replica_once() -> None:
    """A refusal for a reason may be different elsewhere, and is not asked for again and again."""
    plane = Plane({"a:1": said_by_the_plane()})
    assert await plane.call() == "from b:1"
    plane = Plane(dict.fromkeys(("a:1", "b:1", "c:1"), said_by_the_plane()))
    with pytest.raises(UnavailableError) as caught:
        await plane.call()
    assert caught.value.reason == "UNAVAILABLE"
    assert plane.asked == ["a:1", "b:1", "c:1"]


async def test_silent_replica_is_left() -> None:
    """A call that got no answer in time fails, and the next one goes elsewhere."""
    plane = Plane({"a:1": rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED)})
    with pytest.raises(AnswerTimeoutError):
        await plane.call()
    assert await plane.call() == "from b:1"


async def test_refusal_is_final() -> None:
    """What another replica would say too is not asked of it, and moves nobody."""
    plane = Plane({"a:1": rpc_error(grpc.StatusCode.NOT_FOUND)})
    for _ in range(2):
        with pytest.raises(NotFoundError):
            await plane.call()
    assert plane.asked == ["a:1", "a:1"]


async def test_failures_of_one_replica_move_on_once() -> None:
    """Calls that fail together leave their replica together: none skips a healthy one."""
    plane = Plane({"a:1": rpc_error(UNAVAILABLE)})
    assert await asyncio.gather(*(plane.call() for _ in range(5))) == ["from b:1"] * 5


async def test_single_silent_address_is_connected_anew() -> None:
    """A balancer's address may lead to another replica: what it did not answer on is dropped."""
    opened: list[Channel] = []
    replicas = replicas_of(opened=opened)
    first = replicas.in_use()
    await replicas.leave(first, silent=True)
    second = replicas.in_use()
    assert second is not first
    await replicas.leave(second)
    assert replicas.in_use() is second
    # Others may still wait for what they asked there; not for ever.
    assert [channel.closed for channel in opened] == [False, False]
    await replicas.leave(second, silent=True)
    assert [channel.closed for channel in opened] == [True, False]


async def test_replica_that_comes_back_is_connected_to_at_once() -> None:
    """A channel that lost its connection is not waited for when its replica is used again."""
    opened: list[Channel] = []
    clock = FakeClock()
    replicas = replicas_of("a:1,b:1", opened, clock)
    await replicas.leave(replicas.in_use())
    second = replicas.in_use()
    opened[0].state = grpc.ChannelConnectivity.TRANSIENT_FAILURE
    await clock.advance(1)
    await replicas.leave(second)
    assert replicas.in_use().address == "a:1"
    assert [(one.address, one.closed) for one in opened] == [
        ("a:1", True),
        ("b:1", False),
        ("a:1", False),
    ]


async def test_replicas_that_refuse_are_not_connected_to_with_every_call() -> None:
    """However often calls fail, an address gets about one new channel a second."""
    opened: list[Channel] = []
    clock = FakeClock()
    replicas = replicas_of("a:1,b:1", opened, clock)
    for _ in range(1000):
        await replicas.leave(replicas.in_use())
        for channel in opened:
            channel.state = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        await clock.advance(0.01)
    assert 10 < len(opened) < 50


async def test_clients_do_not_all_choose_the_same_replica() -> None:
    """The order is shuffled for each client."""
    first = {Replicas(THREE).in_use().address for _ in range(100)}
    assert first == {"a:1", "b:1", "c:1"}


async def test_watch_goes_on_at_another_replica() -> None:
    """A watch that ends, or breaks, is resumed elsewhere by its revision."""
    watches = {
        "a:1": Watch([upserted("a", 3), synced(9)]),
        "b:1": Watch([upserted("b", 11), UNAVAILABLE]),
        "c:1": Watch([upserted("c", 12), grpc.StatusCode.RESOURCE_EXHAUSTED], [synced(13)]),
    }
    events = calls_of(lambda address: watches[address], target=THREE).watch(
        itself, lambda after: engine_pb2.WatchEnginesRequest(after_revision=after), _event
    )
    assert [shown(await anext(events)) for _ in range(5)] == [("a", 3), 9, ("b", 11), ("c", 12), 13]
    await events.aclose()
    assert watches["b:1"].resumed_after == [9]
    # A reader that was cut for its slowness does better nowhere else.
    assert watches["c:1"].resumed_after == [11, 12]


async def test_silent_watch_is_left() -> None:
    """A watch without even a bookmark for minutes is taken for dead, and resumed elsewhere."""
    clock = FakeClock()

    class Mute:
        def __init__(self, _: Any) -> None:
            self._over = asyncio.Event()

        def __aiter__(self) -> AsyncIterator[Message]:
            return self.messages()

        async def messages(self) -> AsyncIterator[Message]:
            yield synced(7)
            await self._over.wait()
            raise asyncio.CancelledError

        def cancel(self) -> None:
            self._over.set()

    lively = Watch([upserted("b", 8)])
    events = calls_of(lambda at: Mute if at == "a:1" else lively, clock, "a:1,b:1").watch(
        itself, lambda after: engine_pb2.WatchEnginesRequest(after_revision=after), _event
    )
    assert shown(await anext(events)) == 7
    following = asyncio.ensure_future(anext(events))
    await clock.advance(89.0)
    assert not following.done()
    await clock.advance(100.0)
    assert shown(await following) == ("b", 8)
    assert lively.resumed_after == [7]
    await events.aclose()
