"""Writes an answer's bytes, and what a fault makes of them."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from kvplane_services.clock import Clock
from kvplane_services.sim.faults import Fault, FaultKind


class FaultyWriter:
    """Counts bytes, and lets the fault strike at the byte that it names.

    Args:
        response: Where to; prepared.
        transport: Its connection.
        fault: What goes wrong, if anything.
        clock: Time.
        die: Ends the process.

    """

    def __init__(
        self,
        response: web.StreamResponse,
        *,
        transport: asyncio.Transport | None,
        fault: Fault | None,
        clock: Clock,
        die: Callable[[], None],
    ) -> None:
        self._response = response
        self._transport = transport
        self._fault = fault
        self._clock = clock
        self._die = die
        self._written = 0

    async def write(self, data: bytes) -> None:
        """Writes, up to where the fault strikes."""
        if self._fault is None:
            await self._response.write(data)
            return
        left = max(0, int(self._fault.values["at_byte"]) - self._written)
        self._written += len(data)
        if len(data) <= left:
            await self._response.write(data)
            return
        if left:
            await self._response.write(data[:left])
        fault, self._fault = self._fault, None
        await self._strike(fault)
        await self._response.write(data[left:])

    async def _strike(self, fault: Fault) -> None:
        if fault.kind is FaultKind.DIE:
            self._die()
        elif fault.kind is FaultKind.CUT and self._transport is not None:
            self._transport.abort()
            raise ConnectionResetError
        elif fault.kind is FaultKind.STALL and fault.values["seconds"]:
            await self._clock.sleep(fault.values["seconds"])
        else:
            await asyncio.Event().wait()
