"""Calls, pages and watches at one replica and at several, on virtual time and without a network."""

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import (
    AnswerTimeoutError,
    NotFoundError,
    UnavailableError,
)
from kvplane.client.replicas import Replicas
from tests.support.calls_doubles import (
    THREE,
    UNAVAILABLE,
    Channel,
    ImpatientClock,
    calls_of,
    itself,
    replicas_of,
    rpc_error,
)
from tests.support.clock import FakeClock


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
