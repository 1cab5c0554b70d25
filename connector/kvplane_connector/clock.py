"""The engine's clock: the one that vLLM stamps block expiries with."""

import asyncio
import time


class EngineClock:
    """Implements `kvplane.client.clock.Clock` on `perf_counter`, vLLM's choice for expiries."""

    def now(self) -> float:
        """Seconds since an arbitrary start; comparable within one process only."""
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        """Waits; a negative or zero duration only yields to other tasks."""
        await asyncio.sleep(max(0.0, seconds))
