"""Links at planes of several replicas, and streams that end."""

import pytest

from kvplane.client.errors import FailedPreconditionError, UnavailableError
from kvplane.client.frames import StreamEnded
from tests.support.clock import FakeClock
from tests.support.frame_streams import Silence
from tests.support.link_doubles import Answer, Frame, Plane, Source, link_to, outcomes, running


async def test_stream_that_is_over_is_replaced_at_once() -> None:
    """The end of a stream is noticed when it comes, not when the next heartbeat is due."""
    plane, clock = Plane(), FakeClock()
    link = link_to(plane, Source(), clock)
    async with running(link, clock):
        await clock.advance(2)

        def over(_: Frame, __: Answer) -> None:
            raise StreamEnded

        plane.script = over
        plane.transport.streams[-1].end()
        await clock.advance(0)
        plane.script = outcomes()
        await clock.advance(1)
        assert len(plane.transport.streams) == 2
        assert plane.frames[-1].full_report
        assert link.connected
        # Another replica goes on with the registration that the engine has.
        assert plane.transport.left == [False]
        assert len(plane.requests) == 1


async def test_graceful_end_of_a_stream_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    """A replica that stops in good order is not warned of."""
    plane, clock = Plane(), FakeClock()
    ends = [StreamEnded()]

    def end_once(_: Frame, __: Answer) -> None:
        if ends:
            raise ends.pop()

    plane.script = end_once
    with caplog.at_level("WARNING"):
        async with running(link_to(plane, Source(), clock), clock):
            await clock.advance(2)
            assert len(plane.frames) == 2
    assert not caplog.records


async def test_silent_replica_is_left() -> None:
    """A replica that leaves a heartbeat without an answer is left for another."""
    plane, clock = Plane(), FakeClock()

    def silent(_: Frame, __: Answer) -> None:
        raise Silence

    plane.script = silent
    async with running(link_to(plane, Source(), clock), clock):
        await clock.advance(5.1)
        assert plane.transport.left == [True]


async def test_replica_that_is_not_up_yet_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor is one that dies later: the log names it, and the one that the engine goes to."""
    plane, clock = Plane(), FakeClock()
    plane.transport.addresses = ["127.0.0.1:1", "127.0.0.1:2"]
    plane.register_errors = [UnavailableError("refused", code="UNAVAILABLE")]
    link = link_to(plane, Source(), clock, target="127.0.0.1:1,127.0.0.1:2")
    with caplog.at_level("INFO", "kvplane"):
        async with running(link, clock):
            await clock.advance(2)
            assert link.connected

            def one_is_dead(_: Frame, __: Answer) -> None:
                if plane.transport.address == "127.0.0.1:2":
                    raise UnavailableError("reset", code="UNAVAILABLE")

            plane.script = one_is_dead
            await clock.advance(20)
            assert link.connected
    assert {record.levelname for record in caplog.records} == {"INFO"}
    first, second = (record.message for record in caplog.records if "no link" in record.message)
    assert "the replica at 127.0.0.1:1, going on at 127.0.0.1:2: " in first
    assert "the replica at 127.0.0.1:2, going on at 127.0.0.1:1: " in second


async def test_refused_registration_is_refused_everywhere() -> None:
    """What the plane says of the engine itself does not send it from replica to replica."""
    plane, clock = Plane(), FakeClock()
    plane.register_errors = [
        FailedPreconditionError("no such version", code="FAILED_PRECONDITION"),
        UnavailableError("away", code="UNAVAILABLE"),
    ]
    async with running(link_to(plane, Source(), clock), clock):
        await clock.advance(0.4)
        assert plane.transport.left == []
        await clock.advance(4)
        assert plane.transport.left == [False]
        assert len(plane.requests) == 3


async def test_goodbye_reaches_another_replica() -> None:
    """An engine that stops while its replica is away takes its registration back elsewhere."""
    plane, clock = Plane(), FakeClock()
    link = link_to(plane, Source(), clock)
    async with running(link, clock):
        plane.transport.deregister_error = UnavailableError("away", code="UNAVAILABLE")
        plane.transport.on_leave = lambda: setattr(plane.transport, "deregister_error", None)
    assert [one.epoch for one in plane.transport.deregistered] == [101]
