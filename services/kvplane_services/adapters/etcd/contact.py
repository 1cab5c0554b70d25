"""Whether etcd can be reached, as the calls and streams of this process find it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kvplane.client.backoff import Backoff
from kvplane_services.adapters.etcd.backend import LeaseGone, NoRoom
from kvplane_services.clock import Clock, wait_set
from kvplane_services.errors import StoreRefused, Unavailable
from kvplane_services.store.commits import store_away

R = TypeVar("R")

_log = logging.getLogger(__name__)

# A caller that gave up after that long may have met an etcd that is away.
_SUSPICIOUS = 0.1
_RETRY_AFTER = 1.0
# Seconds between lines that say that etcd is full.
_REMIND = 60.0
# Shorter ones are breaks of a stream, not of etcd: to try that stream again at once would be vain.
_OUTAGE = 1.0


class Contact:
    """Counts what was tried, once it runs.

    `reachable` is False from the first failure until something works.
    Only what needs a quorum counts as working: a node that is cut from the others still sends
    what it knows on open streams.

    Once it runs, its errors say nothing of etcd, which is none of the business of those who call
    the plane; the log does.

    Args:
        probe: Asks etcd for something that needs a quorum.
        clock: Times probes.

    """

    def __init__(self, *, probe: Callable[[], Awaitable[object]], clock: Clock) -> None:
        self._probe = probe
        self._clock = clock
        self._reachable = True
        self._running = False
        self._since = clock.now()
        # What the log was last told of an outage, and when it was told that etcd is full.
        self._said = ""
        self._said_full = float("-inf")
        self._doubt = asyncio.Event()
        # Set, and replaced, when an outage is over.
        self._back = asyncio.Event()

    @property
    def reachable(self) -> bool:
        """See `Store.reachable`."""
        return self._reachable

    async def ask(self, call: Awaitable[R]) -> R:
        """The result of a call that needs a quorum.

        Raises:
            LeaseGone: As the call.
            NoRoom: As the call.
            Unavailable: As the call; or etcd no longer takes this process's password or
                certificate, which an operator may set right while it runs.
            StoreRefused: As the call, before it runs.

        """
        started = self._clock.now()
        try:
            result = await call
        except LeaseGone:
            self._answered()
            raise
        except NoRoom as error:
            self._answered()
            raise self._full(error) from error
        except (Unavailable, StoreRefused) as error:
            self.failed(error)
            if not self._running:
                raise
            waits = error.retry_after if isinstance(error, Unavailable) else _RETRY_AFTER
            raise store_away(waits) from error
        except asyncio.CancelledError:
            # It was not etcd that said no, but its silence may be why the caller gave up.
            if self._clock.now() - started >= _SUSPICIOUS:
                self._doubt.set()
            raise
        self._answered()
        return result

    def failed(self, error: Unavailable | StoreRefused) -> None:
        """Notes that a call or stream failed."""
        if not self._running:
            return
        if self._reachable:
            self._since = self._clock.now()
        # An etcd that comes back may refuse this process, which an operator has to know.
        refused = isinstance(error, StoreRefused) and error.message != self._said
        if self._reachable or refused:
            self._said = error.message
            _log.warning("the store is away: %s", error.message)
        self._reachable = False
        self._doubt.set()

    async def pause(self, seconds: float) -> None:
        """Waits before a stream is tried again: for that long, or until an outage is over."""
        await wait_set(self._back, seconds, clock=self._clock)

    async def run(self) -> None:
        """Asks etcd while it is away or in doubt, until cancelled."""
        self._running = True
        backoff = Backoff(first=0.2, longest=2.0)
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            try:
                await self.ask(self._probe())
            except Unavailable:
                await self._clock.sleep(backoff.next())
            else:
                backoff.reset()

    def _full(self, error: NoRoom) -> NoRoom:
        if self._clock.now() - self._said_full >= _REMIND:
            self._said_full = self._clock.now()
            _log.warning("the store takes no writes: %s", error.message)
        return NoRoom(
            "the plane's store is full, and nothing was changed: try again when its operator has "
            "made room",
            retry_after=error.retry_after,
        )

    def _answered(self) -> None:
        if not self._reachable:
            self._reachable = True
            away = self._clock.now() - self._since
            if away >= _OUTAGE:
                self._back.set()
                self._back = asyncio.Event()
            _log.warning("the store answers again, after %.1f s", away)
