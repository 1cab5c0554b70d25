"""The one place where time comes from.

Deadlines are counted on the monotonic clock. Wall time is for people and for
seeding sequences; it is never compared.
"""

import asyncio
import datetime as dt
import random
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Tells the time and waits. Injected everywhere; tests pass a fake."""

    def now(self) -> float:
        """Seconds on a monotonic clock with an arbitrary start."""
        ...

    def wall(self) -> dt.datetime:
        """The time of day in UTC, for people."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits; a negative or zero duration only yields to other tasks."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """See `Clock.now`."""
        return time.monotonic()

    def wall(self) -> dt.datetime:
        """See `Clock.wall`."""
        return dt.datetime.now(dt.UTC)

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        await asyncio.sleep(max(0.0, seconds))


async def wait_set(event: asyncio.Event, seconds: float, *, clock: Clock) -> bool:
    """Waits for an event for at most `seconds` of `clock`; tells whether it is set."""
    if event.is_set():
        return True
    waiters: set[asyncio.Future[Any]] = {
        asyncio.ensure_future(event.wait()),
        asyncio.ensure_future(clock.sleep(seconds)),
    }
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    return event.is_set()


async def within(work: Coroutine[Any, Any, T], seconds: float, *, clock: Clock) -> T:
    """What `work` gives if it is done within `seconds` of `clock`; else it is cancelled.

    Raises:
        TimeoutError: It was not done in time.

    """
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError
    finally:
        timer.cancel()
        task.cancel()
        await asyncio.gather(task, timer, return_exceptions=True)


def jittered(seconds: float) -> float:
    """A wait of about that long: those who were turned away together do not come back together."""
    return seconds * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
