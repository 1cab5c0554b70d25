"""Watches at one replica and at several, on virtual time and without a network."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import (
    InvalidRequestError,
    KvplaneClientError,
)
from kvplane.client.engines import _event
from tests.support.calls_doubles import (
    THREE,
    UNAVAILABLE,
    ImpatientClock,
    Message,
    Watch,
    calls_of,
    follow,
    itself,
    shown,
    synced,
    upserted,
)
from tests.support.clock import FakeClock


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
