"""What the watches of several replicas say of leases."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from kvplane.api.lease.v1 import lease_pb2 as pb
from kvplane.api.lease.v1 import lease_pb2_grpc
from kvplane_services.clock import SystemClock

_AGAIN_AFTER = 0.2


@dataclass(frozen=True, slots=True)
class Seen:
    """An event of one replica's watch; `at` on the monotonic clock.

    `reason` is empty unless the lease ended.
    """

    replica: str
    lease: str
    session: str
    retention_id: str
    fencing_token: int
    reason: str
    at: float


class LeaseWatch:
    """Follows the leases of replicas, each on a thread, and keeps every event.

    A replica that goes away is watched again, from the start, once it answers.

    Args:
        replicas: gRPC addresses by name.

    """

    def __init__(self, replicas: Mapping[str, str]) -> None:
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._calls: dict[str, Any] = {}
        self._events: list[Seen] = []
        self._threads = [
            threading.Thread(target=self._follow, args=pair) for pair in replicas.items()
        ]

    @property
    def events(self) -> list[Seen]:
        """Everything so far, in the order in which it came."""
        with self._lock:
            return list(self._events)

    def since(self, moment: float) -> list[Seen]:
        """What came after that time."""
        return [event for event in self.events if event.at >= moment]

    def start(self) -> None:
        """Begins to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends all watches."""
        self._stop.set()
        with self._lock:
            for call in self._calls.values():
                call.cancel()
        for thread in self._threads:
            thread.join(20)

    def _follow(self, name: str, target: str) -> None:
        while not self._stop.is_set():
            with grpc.insecure_channel(target) as channel:
                call = lease_pb2_grpc.LeaseServiceStub(channel).WatchLeases(pb.WatchLeasesRequest())
                with self._lock:
                    self._calls[name] = call
                try:
                    for event in call:
                        self._note(name, event)
                except grpc.RpcError:
                    pass  # It is away, or we stop.
            self._stop.wait(_AGAIN_AFTER)

    def _note(self, name: str, event: pb.WatchLeasesResponse) -> None:
        ended = event.HasField("ended")
        if not ended and not event.HasField("upserted"):
            return
        lease = event.ended if ended else event.upserted
        seen = Seen(
            replica=name,
            lease=lease.name,
            session=lease.session_key.session_id,
            retention_id=lease.retention_id,
            fencing_token=lease.fencing_token,
            reason=pb.EndReason.Name(lease.end_reason).removeprefix("END_REASON_") if ended else "",
            at=self._clock.now(),
        )
        with self._lock:
            self._events.append(seen)


@contextmanager
def watching(replicas: Mapping[str, str]) -> Iterator[LeaseWatch]:
    """Watches for as long as the block runs."""
    watch = LeaseWatch(replicas)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
