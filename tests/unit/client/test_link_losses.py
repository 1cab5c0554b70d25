"""Links that lose frames and answers, and nothing of what they carried."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import (
    EndReason,
)
from kvplane.client.errors import UnavailableError
from tests.support.clock import FakeClock
from tests.support.frame_streams import Silence
from tests.support.link_doubles import (
    Answer,
    Frame,
    Plane,
    Source,
    link_to,
    retention,
    running,
)

_FAULTS = (
    "answer",
    "lose frame",
    "lose answer",
    "cut",
    "not found",
    "full report",
)


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
