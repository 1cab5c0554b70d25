"""The rules of an engine's link, on virtual time and without a network."""

import asyncio

import pytest

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.client import (
    EndReason,
    FencedError,
    LinkTiming,
    Registration,
    Release,
    Renew,
)
from kvplane.client.engine_wire import duration_of
from kvplane.client.errors import FailedPreconditionError, UnavailableError
from tests.support.clock import FakeClock
from tests.support.frame_streams import Silence
from tests.support.link_doubles import (
    RENEWED,
    Answer,
    Frame,
    Plane,
    Source,
    link_to,
    outcomes,
    retention,
    running,
)


async def test_registers_then_reports_then_beats() -> None:
    """A link registers once, starts with a full report and then beats as the plane asks."""
    plane, source, clock = Plane(), Source(), FakeClock()
    granted: list[Registration] = []
    link = link_to(plane, source, clock, on_registered=granted.append)
    source.put(retention("a"))
    async with running(link, clock):
        assert granted == [Registration("engines/decode-0", 101, 30.0, 10.0, 25.0)]
        assert link.registration == granted[0]
        assert link.connected
        await clock.advance(9.9)
        assert len(plane.frames) == 1
        await clock.advance(0.2)
        assert len(plane.frames) == 2
    first, second = plane.frames
    assert (first.full_report, second.full_report) == (True, False)
    assert first.name == "engines/decode-0"
    assert first.epoch == 101
    assert first.load.running_requests == 3
    assert [one.retention_id for one in first.retentions] == ["a"]
    assert first.retentions[0].remaining.seconds == 30
    assert not second.retentions


async def test_clean_stop_deregisters_this_registration() -> None:
    """`aclose` ends `run`, takes back the epoch that this link had, and closes the connection."""
    plane, clock = Plane(), FakeClock()
    link = link_to(plane, Source(), clock)
    async with running(link, clock):
        pass
    assert [(one.name, one.epoch) for one in plane.transport.deregistered] == [
        ("engines/decode-0", 101)
    ]
    assert plane.transport.closed
    assert all(stream.cancelled for stream in plane.transport.streams)
    await link.aclose()
    assert len(plane.transport.deregistered) == 1


async def test_stop_without_a_plane_is_clean() -> None:
    """A plane that does not answer the goodbye does not make it fail."""
    plane, clock = Plane(), FakeClock()
    plane.transport.deregister_error = UnavailableError("away", code="UNAVAILABLE")
    async with running(link_to(plane, Source(), clock), clock):
        pass
    assert plane.transport.closed


async def test_durations_count_from_when_the_frame_was_sent() -> None:
    """Directives come with the time of sending, however late the answer."""
    plane, source, clock = Plane(), Source(), FakeClock()

    def late(_: Frame, answer: Answer) -> None:
        clock._now += 3.0  # The answer takes three seconds.
        renew = engine_pb2.LeaseDirective(
            retention_id="a", lease="leases/x", fencing_token=7, renew=duration_of(30)
        )
        release = engine_pb2.LeaseDirective(
            retention_id="b",
            lease="leases/y",
            fencing_token=8,
            release=lease_pb2.END_REASON_SUPERSEDED,
        )
        answer.directives.extend([renew, release, engine_pb2.LeaseDirective(retention_id="c")])
        answer.drain_requested = True

    plane.script = late
    link = link_to(plane, source, clock)
    async with running(link, clock):
        assert source.applied == [
            (Renew("a", "leases/x", 7, 30.0), 1000.0),
            (Release("b", "leases/y", 8, EndReason.SUPERSEDED), 1000.0),
        ]
        assert link.drain_requested


async def test_not_found_registers_again() -> None:
    """A plane that forgot the engine gets a new registration and a full report."""
    plane, source, clock = Plane(), Source(), FakeClock()
    plane.script = outcomes(RENEWED, engine_pb2.HEARTBEAT_OUTCOME_NOT_FOUND)
    source.put(retention("a"))
    async with running(link_to(plane, source, clock), clock):
        await clock.advance(10)
        await clock.advance(1)
    assert len(plane.requests) == 2
    assert plane.requests[0].request_id != plane.requests[1].request_id
    last = plane.frames[-1]
    assert (last.epoch, last.full_report) == (102, True)
    assert [one.retention_id for one in last.retentions] == ["a"]


async def test_unknown_outcome_counts_as_not_found() -> None:
    """An outcome of a newer plane is treated as NOT_FOUND."""
    plane, clock = Plane(), FakeClock()
    plane.script = outcomes(99)
    async with running(link_to(plane, Source(), clock), clock):
        await clock.advance(1)
    assert len(plane.requests) == 2


async def test_plane_that_forgets_at_once_is_not_flooded() -> None:
    """NOT_FOUND again and again is met with ever longer waits."""
    plane, clock = Plane(), FakeClock()
    plane.script = outcomes(*[engine_pb2.HEARTBEAT_OUTCOME_NOT_FOUND] * 1000)
    async with running(link_to(plane, Source(), clock), clock):
        for _ in range(100):
            await clock.advance(1)
    assert 25 <= len(plane.requests) <= 60


async def test_full_report_asked_for_a_full_report_is_not_a_loop() -> None:
    """A plane that answers a full report with a wish for one is met with waits, too."""
    plane, clock = Plane(), FakeClock()
    plane.script = outcomes(*[engine_pb2.HEARTBEAT_OUTCOME_FULL_REPORT_NEEDED] * 1000)
    async with running(link_to(plane, Source(), clock), clock):
        for _ in range(100):
            await clock.advance(1)
    assert len(plane.requests) == 1
    assert 25 <= len(plane.frames) <= 60


async def test_fenced_ends_the_link_for_good() -> None:
    """FENCED raises out of `run`, and the successor's registration is left alone."""
    plane, clock = Plane(), FakeClock()
    plane.script = outcomes(engine_pb2.HEARTBEAT_OUTCOME_FENCED)
    link = link_to(plane, Source(), clock)
    with pytest.raises(FencedError, match="epoch 101") as caught:
        await link.run()
    await link.aclose()
    assert caught.value.reason == "EPOCH_STALE"
    assert len(plane.frames) == 1
    assert plane.transport.deregistered == []
    assert plane.transport.closed


async def test_retried_registration_is_the_same_request() -> None:
    """Retries carry one request id, so that a lost answer costs no epoch."""
    plane, clock = Plane(), FakeClock()
    plane.register_errors = [UnavailableError("away", code="UNAVAILABLE") for _ in range(3)]
    async with running(link_to(plane, Source(), clock), clock):
        for _ in range(20):
            await clock.advance(1)
    assert len(plane.requests) == 4
    assert len({one.request_id for one in plane.requests}) == 1
    assert plane.frames


async def test_refused_engine_keeps_trying_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """An incompatible engine serves on; the plane's reason is logged once, not at every try."""
    plane, clock = Plane(), FakeClock()
    plane.register_errors = [
        FailedPreconditionError("vLLM 0.19 is too old", code="FAILED_PRECONDITION")
        for _ in range(5)
    ]
    with caplog.at_level("WARNING"):
        async with running(link_to(plane, Source(), clock), clock):
            for _ in range(40):
                await clock.advance(1)
    assert len(plane.requests) == 6
    (said,) = [record.message for record in caplog.records if "too old" in record.message]
    assert said.startswith("decode-0: no link to the plane at 127.0.0.1:1, trying on: ")


async def test_silent_plane_is_given_up_after_the_deadline() -> None:
    """A frame without an answer ends its stream; the next one starts with a full report."""
    plane, clock = Plane(), FakeClock()

    def silent_once(frame: Frame, _: Answer) -> None:
        if frame.sequence == 1:
            raise Silence

    plane.script = silent_once
    async with running(link_to(plane, Source(), clock), clock):
        await clock.advance(4.9)
        assert len(plane.frames) == 1
        await clock.advance(1.2)
        assert len(plane.frames) == 2
    assert [one.full_report for one in plane.frames] == [True, True]
    assert [stream.cancelled for stream in plane.transport.streams] == [True, True]


async def test_answer_to_another_frame_ends_the_stream() -> None:
    """A sequence that was not asked is not believed."""
    plane, source, clock = Plane(), Source(), FakeClock()

    def wrong_once(frame: Frame, answer: Answer) -> None:
        if frame.sequence == 1:
            answer.sequence = 99

    plane.script = wrong_once
    source.put(retention("a"))
    async with running(link_to(plane, source, clock), clock):
        assert source.changes().retentions, "a wrong answer acknowledged a change"
        await clock.advance(1)
        assert not source.changes().retentions
    assert len(plane.transport.streams) == 2


async def test_news_during_flight_goes_with_the_next_frame() -> None:
    """What happens while a frame is in flight is sent right after its answer."""
    plane, source, clock = Plane(), Source(), FakeClock()
    link = link_to(plane, source, clock)

    def meanwhile(frame: Frame, _: Answer) -> None:
        if frame.sequence == 1:
            source.put(retention("late"))
            link.notify()

    plane.script = meanwhile
    async with running(link, clock):
        assert [one.retention_id for one in plane.frames[1].retentions] == ["late"]
        await clock.advance(1)
        assert len(plane.frames) == 2


async def test_plane_that_names_no_interval_does_not_make_it_spin() -> None:
    """A zero interval falls back to that of the registration."""
    plane, clock = Plane(), FakeClock()

    def hasty(_: Frame, answer: Answer) -> None:
        answer.ClearField("heartbeat_interval")

    plane.script = hasty
    async with running(link_to(plane, Source(), clock), clock):
        await clock.advance(9)
        assert len(plane.frames) == 1


async def test_notify_from_anywhere_never_raises() -> None:
    """Hosts may notify before, during and after the link's life, from any thread."""
    plane, clock = Plane(), FakeClock()
    link = link_to(plane, Source(), clock)
    link.notify_threadsafe()
    async with running(link, clock):
        await asyncio.to_thread(link.notify_threadsafe)
        await clock.advance(0)
        assert len(plane.frames) == 2
    link.notify_threadsafe()


async def test_one_link_runs_once() -> None:
    """A second `run` is refused while the first goes on; after `aclose` it returns at once."""
    plane, clock = Plane(), FakeClock()
    link = link_to(plane, Source(), clock)
    async with running(link, clock):
        with pytest.raises(RuntimeError):
            await link.run()
    await link.run()
    assert len(plane.requests) == 1


def test_timing_that_cannot_work_is_refused() -> None:
    """Durations are checked when they are made."""
    with pytest.raises(ValueError):
        LinkTiming(answer_timeout=0)
    with pytest.raises(ValueError):
        LinkTiming(first_backoff=5, longest_backoff=1)
