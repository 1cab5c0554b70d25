"""A clock that only moves when told to, and can wait until the code is asleep."""

import asyncio
import datetime as dt
import heapq
import itertools

_EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class FakeClock:
    """Implements `kvplane_services.clock.Clock` on virtual time that starts at 1000 s."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._slept = asyncio.Condition()

    def now(self) -> float:
        """See `Clock.now`."""
        return self._now

    def wall(self) -> dt.datetime:
        """See `Clock.wall`."""
        return _EPOCH + dt.timedelta(seconds=self._now)

    async def sleep(self, seconds: float) -> None:
        """Returns once the clock was advanced by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        async with self._slept:
            self._slept.notify_all()
        await woken

    async def wait_for_sleepers(self, count: int = 1) -> None:
        """Returns once at least `count` tasks sleep on this clock."""
        async with self._slept:
            await self._slept.wait_for(lambda: self._pending() >= count)

    async def advance(self, seconds: float) -> None:
        """Moves time and wakes those whose time has come, in order, letting each one run."""
        target = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            self._now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
            for _ in range(20):
                await asyncio.sleep(0)
        self._now = target
        for _ in range(20):
            await asyncio.sleep(0)

    def _pending(self) -> int:
        return sum(not woken.done() for _, _, woken in self._sleepers)
