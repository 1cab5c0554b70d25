"""EngineLink over real gRPC on loopback."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import (
    Directive,
    EndReason,
    EngineLink,
    EngineLoad,
    FencedError,
    LinkTiming,
    Retention,
    RetentionLog,
    SessionKey,
)
from tests.support.plane_double import Answer, EngineServiceDouble, Frame, serve

QUICK = LinkTiming(answer_timeout=0.5, first_backoff=0.01, longest_backoff=0.05, close_timeout=1.0)


class LoggedSource(RetentionLog):
    """A source whose directives are kept for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.applied: list[tuple[Directive, float]] = []

    def load(self) -> EngineLoad:
        return EngineLoad(retentions=len(self.held))

    def apply(self, directives: Sequence[Directive], *, sent_at: float) -> None:
        self.applied.extend((one, sent_at) for one in directives)


def retention(name: str, *, tokens: int = 16) -> Retention:
    return Retention(
        retention_id=name,
        session_key=SessionKey("default", "m", "", name),
        tokens=tokens,
        blocks=1,
        kv_transfer_params=b"{}",
        deadline=1e9,
    )


@asynccontextmanager
async def linked(port: int, source: LoggedSource) -> AsyncIterator[EngineLink]:
    link = EngineLink(
        target=f"127.0.0.1:{port}",
        engine_id="decode-0",
        engine=engine_pb2.Engine(role=engine_pb2.ROLE_DECODE),
        source=source,
        timing=QUICK,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(link.run())
        try:
            yield link
        finally:
            await link.aclose()


async def test_first_frame_of_a_stream_is_a_full_report() -> None:
    """A link registers, then says all that the engine holds."""
    plane, source = EngineServiceDouble(), LoggedSource()
    source.put(retention("a"))
    server, port = await serve(plane)
    async with linked(port, source):
        await plane.until(lambda: len(plane.frames) >= 2)
    await server.stop(None)
    assert [one.engine_id for one in plane.registrations] == ["decode-0"]
    assert plane.frames[0].full_report
    assert [one.retention_id for one in plane.frames[0].retentions] == ["a"]
    assert not plane.frames[1].full_report
    assert not plane.frames[1].retentions
    assert [one.epoch for one in plane.deregistrations] == [1]


async def test_notify_sends_at_once() -> None:
    """A change does not wait for the heartbeat interval when the source says so."""
    plane, source = EngineServiceDouble(), LoggedSource()
    plane.heartbeat_interval = 30.0
    server, port = await serve(plane)
    async with linked(port, source) as link:
        await plane.until(lambda: len(plane.frames) == 1)
        source.put(retention("a"))
        await asyncio.to_thread(link.notify_threadsafe)
        await plane.until(lambda: len(plane.frames) == 2)
    await server.stop(None)
    assert [one.retention_id for one in plane.frames[1].retentions] == ["a"]


async def test_change_is_sent_again_until_it_is_answered() -> None:
    """A frame whose answer is lost is followed by a full report on a new stream."""
    plane, source = EngineServiceDouble(), LoggedSource()
    server, port = await serve(plane)

    def lose_the_end(frame: Frame, answer: Answer) -> Answer | None:
        return None if frame.ended and not frame.full_report else answer

    plane.answer = lose_the_end
    async with linked(port, source) as link:
        source.put(retention("a"))
        source.put(retention("b"))
        link.notify()
        await plane.until(lambda: any(f.retentions for f in plane.frames))
        source.end("a", EndReason.RECLAIMED)
        link.notify()
        await plane.until(lambda: any(f.ended and f.full_report for f in plane.frames))
        await plane.until(lambda: not plane.frames[-1].full_report)
    await server.stop(None)
    ends = [(f.full_report, [one.retention_id for one in f.ended]) for f in plane.frames if f.ended]
    assert ends == [(False, ["a"]), (True, ["a"])]
    assert not plane.frames[-1].ended


async def test_plane_that_restarts_gets_everything_again() -> None:
    """A link outlives its plane: the next one hears of every retention, under a new epoch."""
    plane, source = EngineServiceDouble(), LoggedSource()
    server, port = await serve(plane)
    async with linked(port, source) as link:
        for number in range(1000):
            source.put(retention(str(number)))
            link.notify()
            if number == 500:
                await server.stop(None)
        successor = EngineServiceDouble()
        successor.epoch = 10
        known = False

        def forgetful(frame: Frame, answer: Answer) -> Answer:
            nonlocal known
            known = known or frame.epoch > 10
            if not known:
                answer.outcome = engine_pb2.HEARTBEAT_OUTCOME_NOT_FOUND
            return answer

        successor.answer = forgetful
        server, _ = await serve(successor, port=port)
        await successor.until(lambda: bool(successor.frames) and successor.frames[-1].epoch == 11)
    await server.stop(None)
    full = next(f for f in successor.frames if f.epoch == 11)
    assert full.full_report
    assert {one.retention_id for one in full.retentions} == {str(n) for n in range(1000)}


async def test_fenced_engine_stops_and_says_so() -> None:
    """A link whose registration was taken over ends with an error, and leaves the successor be."""
    plane, source = EngineServiceDouble(), LoggedSource()
    server, port = await serve(plane)

    def fence(frame: Frame, answer: Answer) -> Answer:
        answer.outcome = engine_pb2.HEARTBEAT_OUTCOME_FENCED
        return answer

    plane.answer = fence
    link = EngineLink(
        target=f"127.0.0.1:{port}",
        engine_id="decode-0",
        engine=engine_pb2.Engine(),
        source=source,
        timing=QUICK,
    )
    with pytest.raises(FencedError, match="engines/decode-0"):
        await link.run()
    await link.aclose()
    await server.stop(None)
    assert len(plane.registrations) == 1
    assert not plane.deregistrations


async def test_full_report_on_request() -> None:
    """A plane that asks for a full report gets one at once, on the same stream."""
    plane, source = EngineServiceDouble(), LoggedSource()
    plane.heartbeat_interval = 0.01
    server, port = await serve(plane)
    asked = False

    def ask_once(frame: Frame, answer: Answer) -> Answer:
        nonlocal asked
        if not frame.full_report and not asked:
            asked = True
            answer.outcome = engine_pb2.HEARTBEAT_OUTCOME_FULL_REPORT_NEEDED
        return answer

    plane.answer = ask_once
    source.put(retention("a"))
    async with linked(port, source):
        await plane.until(lambda: len(plane.frames) >= 3)
    await server.stop(None)
    assert [f.full_report for f in plane.frames[:3]] == [True, False, True]
    assert [one.retention_id for one in plane.frames[2].retentions] == ["a"]
    assert len(plane.registrations) == 1


async def test_absent_plane_costs_nothing_but_attempts() -> None:
    """A link whose plane is not there keeps trying and stops cleanly."""
    async with linked(1, LoggedSource()) as link:
        await asyncio.sleep(0.2)
        assert not link.connected
        assert link.registration is None


async def test_stream_that_the_plane_refuses_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stream that ends with an error costs a wait, and the log says which error."""
    plane, source = EngineServiceDouble(), LoggedSource()
    server, port = await serve(plane)
    plane.refuse_streams = 2
    with caplog.at_level("WARNING"):
        async with linked(port, source) as link:
            await plane.until(lambda: bool(plane.frames))
            assert link.registration is not None
    await server.stop(None)
    assert plane.refuse_streams == 0
    assert len(plane.registrations) == 1
    assert any("RESOURCE_EXHAUSTED: too many streams" in one.message for one in caplog.records)


async def test_link_lives_in_a_hosts_thread() -> None:
    """A host without an event loop gives the link a daemon thread, and notifies from others."""
    plane, source = EngineServiceDouble(), LoggedSource()
    plane.heartbeat_interval = 30.0
    server, port = await serve(plane)
    link = EngineLink(
        target=f"127.0.0.1:{port}",
        engine_id="decode-0",
        engine=engine_pb2.Engine(),
        source=source,
        timing=QUICK,
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(link.run()), daemon=True)
    thread.start()

    def host() -> None:
        for number in range(1000):
            source.put(retention(str(number)))
            link.notify_threadsafe()

    reported: set[str] = set()

    def everything() -> bool:
        reported.update(one.retention_id for frame in plane.frames for one in frame.retentions)
        return len(reported) == 1000

    await asyncio.gather(*(asyncio.to_thread(host) for _ in range(2)))
    await plane.until(everything)
    closing = threading.Thread(target=lambda: _close(link, loop, thread))
    closing.start()
    await asyncio.to_thread(closing.join)
    await server.stop(None)
    assert [one.epoch for one in plane.deregistrations] == [1]


def _close(link: EngineLink, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Stops a link as its host does: `run` ends, and `aclose` goes on in the same loop."""
    closed = asyncio.run_coroutine_threadsafe(link.aclose(), loop)
    thread.join()
    if not closed.done():
        loop.run_until_complete(asyncio.wrap_future(closed, loop=loop))
    loop.close()
