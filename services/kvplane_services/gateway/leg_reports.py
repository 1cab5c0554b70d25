"""Tells the router how each leg went, exactly once."""

import asyncio
import contextlib
import logging
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from kvplane_services.clock import Clock
from kvplane_services.errors import KvplaneError
from kvplane_services.gateway.instruments import Instruments
from kvplane_services.router.model import (
    Decision,
    KeptTurn,
    LegKind,
    LegReport,
    RouteOutcome,
)
from kvplane_services.router.ports import Router

_log = logging.getLogger(__name__)

# Done once the router has the report, or never will.
Delivery = asyncio.Future[None]

_Waiting = tuple[LegReport, Delivery]

_WORKERS = 4
_MOST_WAITING = 10_000
_STOP_WAIT = 5.0


class LegReports:
    """Delivers reports in the background, those of one decision in order.

    Reports that cannot be delivered are dropped: the router stops counting a decision that it
    hears nothing of when the decision's TTL passes.

    Args:
        router: Where reports go.

    """

    def __init__(self, *, router: Router) -> None:
        self._router = router
        self._queues: list[asyncio.Queue[_Waiting | None]] = [
            asyncio.Queue(_MOST_WAITING) for _ in range(_WORKERS)
        ]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Delivers inside of the block; at its end, first what still waits, for 5 s at most."""
        async with asyncio.TaskGroup() as tasks:
            workers = [
                tasks.create_task(self._deliver(queue), name="leg-reports")
                for queue in self._queues
            ]
            try:
                yield
            finally:
                for queue in self._queues:
                    with contextlib.suppress(asyncio.QueueFull):
                        queue.put_nowait(None)
                await asyncio.wait(workers, timeout=_STOP_WAIT)
                for worker in workers:
                    worker.cancel()

    def send(self, report: LegReport) -> Delivery:
        """Takes a report for delivery, and returns at once."""
        delivery: Delivery = asyncio.get_running_loop().create_future()
        queue = self._queues[zlib.crc32(report.decision_id.encode()) % _WORKERS]
        try:
            queue.put_nowait((report, delivery))
        except asyncio.QueueFull:
            _log.warning("report of %s dropped: the router does not keep up", report.decision_id)
            delivery.set_result(None)
        return delivery

    async def _deliver(self, queue: "asyncio.Queue[_Waiting | None]") -> None:
        while (waiting := await queue.get()) is not None:
            report, delivery = waiting
            try:
                await self._router.report(report)
            except KvplaneError as error:
                _log.warning("report of %s not delivered: %s", report.decision_id, error)
            except Exception:  # noqa: BLE001 - a bug of the router must not end the gateway
                _log.exception("report of %s not delivered", report.decision_id)
            finally:
                if not delivery.done():
                    delivery.set_result(None)


class OpenLeg:
    """One leg of a decision, from its start to its report.

    Args:
        decision: Which turn.
        kind: Which leg.
        reports: Takes the report.
        clock: Tells durations.
        instruments: Counts and measures.

    """

    def __init__(
        self,
        *,
        decision: Decision,
        kind: LegKind,
        reports: LegReports,
        clock: Clock,
        instruments: Instruments,
    ) -> None:
        self._decision = decision
        self._kind = kind
        self._reports = reports
        self._clock = clock
        self._instruments = instruments
        self._started: float | None = None
        self._first_byte = 0.0
        self._open = True

    def start(self) -> None:
        """The leg is being sent."""
        self._started = self._clock.now()
        self._instruments.in_flight.add(1, {"leg": self._kind.value})

    def note_first_byte(self) -> None:
        """The first byte of the answer is there."""
        if self._started is not None and not self._first_byte:
            self._first_byte = self._clock.now() - self._started
            self._instruments.first_byte.record(
                self._first_byte,
                {"leg": self._kind.value, "strategy": self._decision.strategy.value},
            )

    def end(
        self,
        outcome: RouteOutcome,
        *,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        output_tokens: int = 0,
        kept: KeptTurn | None = None,
    ) -> Delivery | None:
        """The leg is over. Only the first call counts, and returns the report's delivery."""
        if not self._open:
            return None
        self._open = False
        duration = 0.0
        if self._started is not None:
            duration = self._clock.now() - self._started
            self._instruments.in_flight.add(-1, {"leg": self._kind.value})
        self._instruments.legs.add(1, {"leg": self._kind.value, "outcome": outcome.value})
        return self._reports.send(
            LegReport(
                decision_id=self._decision.decision_id,
                leg=self._kind,
                outcome=outcome,
                time_to_first_byte=self._first_byte,
                duration=duration,
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                output_tokens=output_tokens,
                kept=kept,
            )
        )
