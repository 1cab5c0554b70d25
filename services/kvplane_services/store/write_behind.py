"""Writes a journal's changes in the background, so that nobody waits long for a store."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from kvplane_services.clock import Clock, jittered, wait_set
from kvplane_services.errors import StoreRefused, Unavailable, logged

_log = logging.getLogger(__name__)

# Between attempts at a store that refuses this process until somebody acts, in seconds.
_REFUSED_WAIT = 5.0


class Unwritten(Protocol):
    """Changes that wait to be written: a `Journal`, or what is made of one."""

    def __len__(self) -> int:
        """Changes that are not written yet."""
        ...

    async def flush(self) -> None:
        """Writes them. Raises Unavailable, after which the rest still waits."""
        ...


class WriteBehind:
    """Flushes a journal when told to, and again and again while the store is away.

    Args:
        journal: What is to be written.
        reachable: Whether the store answered lately.
        clock: Times retries.
        what: What the journal is about, for the log.
        patience: Seconds that `settle` waits at most.

    """

    def __init__(
        self,
        *,
        journal: Unwritten,
        reachable: Callable[[], bool],
        clock: Clock,
        what: str,
        patience: float = 0.25,
    ) -> None:
        self._journal = journal
        self._reachable = reachable
        self._clock = clock
        self._what = what
        self._patience = patience
        self._running = False
        self._wake = asyncio.Event()
        self._tried = asyncio.Event()
        self._away = False

    def wake(self) -> None:
        """Has what is noted written soon."""
        self._tried.clear()
        self._wake.set()

    async def settle(self, patience: float | None = None) -> None:
        """Has what is noted written, and waits for it for a moment at most.

        Waits for nothing while the store is away. While `run` does not run, the caller itself
        writes.

        Args:
            patience: Seconds to wait at most, if not what this was made with.

        """
        if not len(self._journal):
            return
        if not self._running:
            await self._flush()
            return
        self.wake()
        if self._reachable() and not self._away:
            seconds = self._patience if patience is None else patience
            await wait_set(self._tried, seconds, clock=self._clock)

    async def run(self) -> None:
        """Writes until cancelled; after a failure again after a while, with jitter."""
        self._running = True
        try:
            while True:
                wait = await self._flush()
                if wait:
                    # Nobody need wait for what is not done soon.
                    self._tried.set()
                    await self._clock.sleep(jittered(wait))
                    continue
                if not len(self._journal):
                    self._tried.set()
                await self._wake.wait()
                self._wake.clear()
        finally:
            self._running = False

    async def _flush(self) -> float:
        """Seconds to wait before the next attempt, 0 if none is needed."""
        try:
            await self._journal.flush()
        except (Unavailable, StoreRefused) as error:
            if not self._away:
                _log.warning("changes of %s wait for the store: %s", self._what, logged(error))
            self._away = True
            return error.retry_after if isinstance(error, Unavailable) else _REFUSED_WAIT
        if self._away:
            _log.info("changes of %s are written again", self._what)
        self._away = False
        return 0.0
