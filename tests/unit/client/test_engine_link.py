"""The rules of an engine's link, on virtual time and without a network."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.client import (
    Directive,
    EndReason,
    EngineLink,
    EngineLoad,
    FencedError,
    LinkTiming,
    Registration,
    Release,
    Renew,
    Retention,
    RetentionLog,
    SessionKey,
)
from kvplane.client.engine_wire import duration_of
from kvplane.client.errors import FailedPreconditionError, UnavailableError
from kvplane.client.frames import StreamEnded
from tests.support.clock import FakeClock
from tests.support.frame_streams import Silence, TransportDouble

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


_FAULTS = (
    "answer",
    "lose frame",
    "lose answer",
    "cut",
    "not found",
    "full report",
)


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


@settings(max_examples=40, deadline=None)
@given(
    faults=st.lists(st.sampled_from(_FAULTS), max_size=12),
    steps=st.lists(st.integers(0, 2), max_size=25),
)
def test_nothing_is_lost(faults: list[str], steps: list[int]) -> None:
    """Whatever is lost on the way, the plane ends up knowing what is held, and why ends came."""
    asyncio.run(_live_through(faults, steps))


class _LossyPlane:
    """Keeps what frames say, and runs through a list of faults, one for each frame."""

    def __init__(self, faults: list[str]) -> None:
        self.held: set[str] = set()
        self.ended: dict[str, int] = {}
        self._left = list(faults)

    def script(self, frame: Frame, answer: Answer) -> None:
        match self._left.pop(0) if self._left else "answer":
            case "lose frame":
                raise Silence
            case "lose answer":
                self._take(frame)
                raise Silence
            case "cut":
                raise UnavailableError("cut", code="UNAVAILABLE")
            case "not found":
                answer.outcome = engine_pb2.HEARTBEAT_OUTCOME_NOT_FOUND
            case "full report":
                answer.outcome = engine_pb2.HEARTBEAT_OUTCOME_FULL_REPORT_NEEDED
            case _:
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        if frame.full_report:
            self.held.clear()
        self.held.update(one.retention_id for one in frame.retentions)
        for one in frame.ended:
            self.held.discard(one.retention_id)
            self.ended[one.retention_id] = one.reason


async def _live_through(faults: list[str], steps: list[int]) -> None:
    plane, source, clock = Plane(), Source(), FakeClock()
    lossy = _LossyPlane(faults)
    plane.script = lossy.script
    link = link_to(plane, source, clock)
    reasons: dict[str, int] = {}
    async with running(link, clock):
        for number, step in enumerate(steps):
            if step == 0 and source.held:
                name = min(source.held)
                source.end(name, EndReason.RECLAIMED)
                reasons[name] = EndReason.RECLAIMED
            elif step == 1:
                source.put(retention(f"{number:02}"))
            link.notify()
            await clock.advance(step)
        # Every fault costs at most one answer's deadline and one wait.
        for _ in range(12 * len(faults) + 12):
            await clock.advance(1)
        assert lossy.held == set(source.held)
        assert lossy.ended == reasons
        assert not source.changes().retentions
        assert not source.changes().ended
