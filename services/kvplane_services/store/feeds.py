"""Feeds from tables of a store in this process."""

import logging
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from kvplane_services.clock import Clock
from kvplane_services.errors import Saturated, Unavailable, WatchTooOld
from kvplane_services.store.model import Event, Reset
from kvplane_services.store.ports import Table

T = TypeVar("T")

_log = logging.getLogger(__name__)


class TableFeed(Generic[T]):
    """See `kvplane_services.store.ports.Feed`: a table's watch that starts over after trouble."""

    def __init__(self, *, table: Table[T], clock: Clock) -> None:
        self._table = table
        self._clock = clock

    async def __call__(self) -> AsyncIterator[Event[T]]:
        """Opens the feed."""
        while True:
            try:
                async for event in self._table.watch():
                    yield event
            except WatchTooOld as error:
                # The store, which lost what was before, says so once for all feeds.
                _log.debug("a feed starts over: %s", error.message)
            except (Saturated, Unavailable) as error:
                _log.warning("a feed starts over: %s", error.message)
                await self._clock.sleep(error.retry_after)
            yield Reset()
