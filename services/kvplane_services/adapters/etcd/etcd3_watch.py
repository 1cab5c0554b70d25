"""Watches through the package etcd3, whose events come on threads of its own."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from kvplane_services.adapters.etcd.backend import (
    Changed,
    CompactedError,
    Deleted,
    Header,
    WatchBatch,
)
from kvplane_services.adapters.etcd.etcd3_calls import PackageCalls
from kvplane_services.adapters.etcd.etcd3_package import PackageWatch, WatchEnded
from kvplane_services.adapters.etcd.grpc_failures import StaleToken
from kvplane_services.adapters.etcd.grpc_kv import check_history
from kvplane_services.errors import Unavailable

_Heard = tuple[Changed | Deleted, ...] | Exception

# Signs of life that are asked for within the time that is allowed for silence.
_SIGNS = 3


class _Inbox:
    """What a watch's thread says, brought to the event loop in order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard: asyncio.Queue[_Heard] = asyncio.Queue()

    def put(self, heard: _Heard) -> None:
        """Called on any thread."""
        try:
            self._loop.call_soon_threadsafe(self._heard.put_nowait, heard)
        except RuntimeError:
            return  # The loop is closed: nobody listens any more.

    async def take(self, seconds: float) -> _Heard | None:
        """What was said next; None if it takes longer than that."""
        try:
            async with asyncio.timeout(seconds):
                return await self._heard.get()
        except TimeoutError:
            return None


async def watch_prefix(
    calls: PackageCalls, prefix: bytes, *, start_revision: int
) -> AsyncIterator[WatchBatch]:
    """See `EtcdBackend.watch`. A header's revision is that of the last change delivered."""
    read = partial(calls.repeat, calls.client.range)
    cluster = await check_history(read, prefix, start_revision)
    inbox = _Inbox()
    watch = await _open(calls, prefix, start_revision, inbox)
    try:
        reached = start_revision - 1
        async for events in _heard(calls, watch, inbox):
            if events:
                reached = _revision(events[-1])
            yield WatchBatch(Header(cluster, reached), events)
    finally:
        watch.close()


async def _open(
    calls: PackageCalls, prefix: bytes, start_revision: int, inbox: _Inbox
) -> PackageWatch:
    opening = asyncio.ensure_future(
        calls.once(calls.client.watch, prefix, start_revision, inbox.put)
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # Its thread goes on, and nobody is there to close what it opens.
        opening.add_done_callback(_close)
        raise


def _close(opened: asyncio.Future[PackageWatch]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


async def _heard(
    calls: PackageCalls, watch: PackageWatch, inbox: _Inbox
) -> AsyncIterator[tuple[Changed | Deleted, ...]]:
    """All that is heard; etcd is asked for a sign of life when it says nothing."""
    heard_at = calls.clock.now()
    while True:
        heard = await inbox.take(calls.config.silence / _SIGNS)
        if isinstance(heard, Exception):
            raise _failure(calls, heard)
        if heard is not None:
            heard_at = calls.clock.now()
            yield heard
        elif calls.clock.now() - heard_at >= calls.config.silence:
            raise Unavailable(f"etcd at {calls.config.target} is silent", retry_after=0.5)
        else:
            watch.ask_for_progress()


def _failure(calls: PackageCalls, heard: Exception) -> Exception:
    if isinstance(heard, CompactedError):
        return heard
    if isinstance(heard, WatchEnded):
        failure = calls.explain(str(heard))
    else:
        failure = calls.failure_of(heard)
    if isinstance(failure, StaleToken):
        return Unavailable(f"etcd takes no token: {failure}", retry_after=0.5)
    return failure


def _revision(event: Changed | Deleted) -> int:
    return event.item.mod_revision if isinstance(event, Changed) else event.mod_revision
