"""An EngineService that remembers what engines say and orders what a test wants.

It runs on threads of its own, so that it can serve engines that outlive a test's event loop.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from kvplane.api.engine.v1 import engine_pb2, engine_pb2_grpc
from kvplane.api.lease.v1 import lease_pb2
from kvplane_services.clock import SystemClock


def duration(seconds: float) -> Duration:
    """A duration for the wire."""
    found = Duration()
    found.FromNanoseconds(round(seconds * 1e9))
    return found


class RecordingPlane(engine_pb2_grpc.EngineServiceServicer):
    """Grants `lease_ttl`; renews what `renews` holds for, releases what is in `releases`."""

    def __init__(self, *, lease_ttl: float, heartbeat_interval: float = 0.1) -> None:
        self.lease_ttl = lease_ttl
        self.heartbeat_interval = heartbeat_interval
        self.renews: Callable[[engine_pb2.Retention], bool] = lambda _: True
        self.releases: dict[str, int] = {}
        self.registrations: list[engine_pb2.RegisterEngineRequest] = []
        self.full_reports: list[engine_pb2.HeartbeatEngineRequest] = []
        self.retentions: dict[str, engine_pb2.Retention] = {}
        self.reports: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.ended_at: dict[str, float] = {}
        self.ends: Counter[str] = Counter()
        self.reads: dict[str, int] = {}
        self.loads: dict[str, engine_pb2.EngineLoad] = {}
        self.on_load: Callable[[str, engine_pb2.EngineLoad], None] = lambda _name, _load: None
        self.deregistered: list[str] = []
        self._owners: dict[str, str] = {}
        self._epoch = 0
        self._clock = SystemClock()
        self._changed = threading.Condition()
        self._server: Any = None
        self.port = 0

    def start(self) -> None:
        """Listens; on the same port as before, if it did before."""
        self._server = grpc.server(
            ThreadPoolExecutor(8, thread_name_prefix="recording-plane"),
            options=[("grpc.so_reuseport", 0)],
        )
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        """Goes away at once."""
        self._server.stop(None).wait()

    @property
    def target(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    def wait(self, condition: Callable[[], bool], *, seconds: float, what: str) -> None:
        """Waits until a condition on what was reported holds; fails the test if it does not."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), f"not within {seconds} s: {what}"

    def of_engine(self, engine_id: str) -> dict[str, engine_pb2.Retention]:
        """The retentions that an engine holds, by id."""
        return {
            name: one
            for name, one in list(self.retentions.items())
            if self._owner(name) == f"engines/{engine_id}"
        }

    def of_session(self, session_id: str) -> list[engine_pb2.Retention]:
        """The retentions of a session that engines hold, oldest first."""
        return [
            one
            for one in list(self.retentions.values())
            if one.session_key.session_id == session_id
        ]

    def wait_for_session(self, session_id: str, count: int = 1) -> engine_pb2.Retention:
        """Waits until a session has this many retentions; returns the newest."""
        self.wait(
            lambda: len(self.of_session(session_id)) >= count,
            seconds=5,
            what=f"{count} retentions of {session_id}",
        )
        return self.of_session(session_id)[-1]

    # -- EngineService

    def RegisterEngine(self, request: Any, context: Any) -> Any:
        with self._changed:
            self._epoch += 1
            self.registrations.append(request)
            self._changed.notify_all()
            engine = engine_pb2.Engine()
            engine.CopyFrom(request.engine)
            engine.name, engine.epoch = f"engines/{request.engine_id}", self._epoch
        return engine_pb2.RegisterEngineResponse(
            engine=engine,
            ttl=duration(10),
            heartbeat_interval=duration(self.heartbeat_interval),
            lease_ttl=duration(self.lease_ttl),
        )

    def DeregisterEngine(self, request: Any, context: Any) -> Any:
        with self._changed:
            self.deregistered.append(request.name)
            self._changed.notify_all()
        return engine_pb2.DeregisterEngineResponse()

    def HeartbeatEngine(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        for frame in request_iterator:
            with self._changed:
                self._record(frame)
                directives = list(self._directives(frame.name))
                self._changed.notify_all()
            yield engine_pb2.HeartbeatEngineResponse(
                sequence=frame.sequence,
                outcome=engine_pb2.HEARTBEAT_OUTCOME_RENEWED,
                ttl=duration(10),
                heartbeat_interval=duration(self.heartbeat_interval),
                directives=directives,
            )

    # Engines do not call these.

    def DrainEngine(self, request: Any, context: Any) -> Any:
        raise AssertionError("an engine called DrainEngine")

    def ResumeEngine(self, request: Any, context: Any) -> Any:
        raise AssertionError("an engine called ResumeEngine")

    def GetEngine(self, request: Any, context: Any) -> Any:
        raise AssertionError("an engine called GetEngine")

    def ListEngines(self, request: Any, context: Any) -> Any:
        raise AssertionError("an engine called ListEngines")

    def WatchEngines(self, request: Any, context: Any) -> Any:
        raise AssertionError("an engine called WatchEngines")

    def _record(self, frame: engine_pb2.HeartbeatEngineRequest) -> None:
        self.loads[frame.name] = frame.load
        self.on_load(frame.name, frame.load)
        if frame.full_report:
            self.full_reports.append(frame)
            for name in [one for one in self.retentions if self._owner(one) == frame.name]:
                del self.retentions[name]
        for one in frame.retentions:
            self.retentions[one.retention_id] = one
            self.reports[one.retention_id] = self.reports.get(one.retention_id, 0) + 1
            self._owners[one.retention_id] = frame.name
        for read in frame.reads:
            self.reads[read.retention_id] = read.reads
        for end in frame.ended:
            self.retentions.pop(end.retention_id, None)
            self.ended[end.retention_id] = end.reason
            self.ended_at[end.retention_id] = self._clock.now()
            self.ends[end.retention_id] += 1

    def _directives(self, engine: str) -> Iterator[engine_pb2.LeaseDirective]:
        for name, one in self.retentions.items():
            if self._owner(name) != engine:
                continue
            directive = engine_pb2.LeaseDirective(
                retention_id=name, lease=f"leases/{name}", fencing_token=1
            )
            if name in self.releases:
                directive.release = lease_pb2.EndReason.ValueType(self.releases[name])
                yield directive
            elif self.renews(one):
                directive.renew.CopyFrom(duration(self.lease_ttl))
                yield directive

    def _owner(self, retention_id: str) -> str:
        return self._owners.get(retention_id, "")
