"""Waits for what a store tells."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from kvplane_services.clock import SystemClock
from kvplane_services.store.model import Event, Removed, Upserted
from kvplane_services.store.ports import Table


async def take(events: AsyncIterator[Event[str]], count: int) -> list[Event[str]]:
    """The next events."""
    return [await asyncio.wait_for(anext(events), 10) for _ in range(count)]


async def changes(events: AsyncIterator[Event[str]], count: int) -> list[Upserted[str] | Removed]:
    """The next events that are no bookmarks."""
    found: list[Upserted[str] | Removed] = []
    while len(found) < count:
        (event,) = await take(events, 1)
        if isinstance(event, Upserted | Removed):
            found.append(event)
    return found


async def eventually(check: Callable[[], Awaitable[bool]], *, seconds: float = 15) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(seconds):
        while not await check():
            await SystemClock().sleep(0.02)


async def is_gone(table: Table[str], key: str) -> bool:
    return await table.get(key) is None
