"""Checks that an engine's account of what it retains agrees with vLLM's count of used blocks."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from kvplane.api.engine.v1 import engine_pb2
from kvplane_services.clock import SystemClock
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import Served, metric

# A heartbeat may be made between two lines of a step: only what stands for this long is compared.
SETTLED = 1.0
PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class _Frame:
    at: float
    used: int
    retained: int
    idle: bool


class BlockAccount:
    """What heartbeats and vLLM's gauge said, and when."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._frames: list[_Frame] = []
        self._gauges: list[tuple[float, int]] = []

    def heard(self, load: engine_pb2.EngineLoad) -> None:
        """A heartbeat told the engine's load."""
        idle = not load.running_requests and not load.waiting_requests
        self._frames.append(_Frame(self._clock.now(), load.used_blocks, load.retained_blocks, idle))

    def read(self, used: int) -> None:
        """vLLM's gauge was read."""
        self._gauges.append((self._clock.now(), used))

    def check(self) -> int:
        """Fails the test if the account and vLLM's count differ; returns how often they agreed."""
        agreed = 0
        for frame in self._frames:
            assert frame.retained <= frame.used, frame
            if (settled := self._settled(frame.at)) is not None:
                assert settled.retained == settled.used, settled
                agreed += 1
        for at, used in self._gauges:
            settled = self._settled(at)
            # An engine that holds nothing makes no steps, and its gauge is as old as its last one.
            if settled is not None and settled.retained:
                assert used == settled.retained, (used, settled)
                agreed += 1
        return agreed

    def _settled(self, at: float) -> _Frame | None:
        """What all heartbeats of an idle engine said around a time; None if they differ."""
        near = [one for one in self._frames if abs(one.at - at) < SETTLED]
        if not near or near[0].at > at - SETTLED / 2 or near[-1].at < at + SETTLED / 2:
            return None
        first = near[0]
        same = all(one.idle and one.retained == first.retained for one in near)
        return near[-1] if same else None


@contextmanager
def checked_account(plane: RecordingPlane, engine: Served, name: str) -> Generator[BlockAccount]:
    """Compares, until the block ends, what an engine reports with vLLM's gauge, and checks it then.

    Requests that vLLM retains by itself, with transfer parameters and without a mark, are in no
    account: there must be none.
    """
    account, over = BlockAccount(), threading.Event()

    def listen(engine_name: str, load: engine_pb2.EngineLoad) -> None:
        if engine_name == name:
            account.heard(load)

    def watch() -> None:
        total = next(
            one.engine.layout.total_blocks
            for one in plane.registrations
            if f"engines/{one.engine_id}" == name
        )
        while not over.wait(PAUSE):
            account.read(round(metric(engine, "vllm:kv_cache_usage_perc") * total))

    before, plane.on_load = plane.on_load, listen
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield account
    finally:
        over.set()
        watcher.join()
        plane.on_load = before
    account.check()
