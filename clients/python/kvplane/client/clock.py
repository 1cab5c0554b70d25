"""The one place where the client's time comes from. Deadlines are on the monotonic clock."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits. Tests pass a fake."""

    def now(self) -> float:
        """Seconds on a monotonic clock with an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits; a negative or zero duration only yields to other tasks."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """See `Clock.now`."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        await asyncio.sleep(max(0.0, seconds))
