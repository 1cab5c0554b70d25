"""Feeds of engines and leases from the lease manager's process.

The client's watch reconnects with jittered backoff, resumes after the last revision, and
starts over where that is gone. These adapters translate, and go on even after a refusal:
a process that follows another outlives its misconfiguration.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.client import calls
from kvplane.client.backoff import Backoff
from kvplane.client.errors import KvplaneClientError
from kvplane.client.plane import Plane
from kvplane_services.clock import Clock
from kvplane_services.engine.model import Engine
from kvplane_services.engine.wire import engine_from_wire
from kvplane_services.errors import InvalidRequest
from kvplane_services.lease.model import Lease
from kvplane_services.lease.wire import lease_from_wire
from kvplane_services.store.model import Event, Removed, Reset, Synced, Upserted
from kvplane_services.store.ports import Feed

_log = logging.getLogger(__name__)

M = TypeVar("M")
T = TypeVar("T")

_Watch = Callable[[], AsyncIterator[calls.WatchEvent[M]]]
_Translate = Callable[[calls.WatchEvent[M]], Iterator[Event[T]]]


def engine_feed(plane: Plane, *, clock: Clock) -> Feed[Engine]:
    """The engines that a plane knows, by id."""
    return _RemoteFeed(
        watch=plane.engines.watch, translate=_engine_events, what="engines", clock=clock
    )


def lease_feed(plane: Plane, *, clock: Clock) -> Feed[Lease]:
    """The leases that a plane knows, by id. A lease is Upserted as ended, then Removed."""
    return _RemoteFeed(
        watch=plane.leases.watch, translate=_lease_events, what="leases", clock=clock
    )


class _RemoteFeed(Generic[M, T]):
    """See `kvplane_services.store.ports.Feed`."""

    def __init__(
        self, *, watch: _Watch[M], translate: _Translate[M, T], what: str, clock: Clock
    ) -> None:
        self._watch = watch
        self._translate = translate
        self._what = what
        self._clock = clock

    async def __call__(self) -> AsyncIterator[Event[T]]:
        """Opens the feed."""
        backoff = Backoff(first=1.0, longest=30.0)
        while True:
            try:
                async for message in self._watch():
                    if isinstance(message, calls.Reset):
                        _log.info("%s: the lease manager starts over", self._what)
                    for event in self._translate(message):
                        yield event
                    if isinstance(message, calls.Synced):
                        backoff.reset()
            except KvplaneClientError as error:
                _log.warning("%s cannot be followed: %s", self._what, error.message)
            except InvalidRequest as error:
                _log.warning("%s: not understood: %s", self._what, error.message)
            await self._clock.sleep(backoff.next())
            yield Reset()


def _engine_events(event: calls.WatchEvent[engine_pb2.Engine]) -> Iterator[Event[Engine]]:
    match event:
        case calls.Upserted(value=message, revision=revision):
            engine = engine_from_wire(message)
            yield Upserted(engine.engine_id, engine, revision)
        case calls.Removed(name=name, revision=revision):
            yield Removed(name.removeprefix("engines/"), revision)
        case calls.Synced(revision=revision):
            yield Synced(revision)
        case calls.Reset():
            yield Reset()


def _lease_events(event: calls.WatchEvent[lease_pb2.Lease]) -> Iterator[Event[Lease]]:
    match event:
        case calls.Upserted(value=message, revision=revision):
            lease = lease_from_wire(message)
            yield Upserted(lease.lease_id, lease, revision)
        case calls.Removed(name=name, value=ended, revision=revision):
            lease_id = name.removeprefix("leases/")
            if ended is not None:
                yield Upserted(lease_id, lease_from_wire(ended), revision)
            yield Removed(lease_id, revision)
        case calls.Synced(revision=revision):
            yield Synced(revision)
        case calls.Reset():
            yield Reset()
