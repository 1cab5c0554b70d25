"""Asks the router, and takes back what nobody waits for any more.

A router counts a turn from its decision to the reports of its legs. A client that leaves while
the router decides must not leave such a count behind, so a decision once asked for is always
waited for, and reported as cancelled if its turn is gone.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager

from kvplane_services.errors import KvplaneError
from kvplane_services.gateway.leg_reports import LegReports
from kvplane_services.router.model import (
    Decision,
    LegKind,
    LegReport,
    RouteOutcome,
    Strategy,
    Subject,
)
from kvplane_services.router.ports import Router

_log = logging.getLogger(__name__)


class Decisions:
    """Gets decisions for turns.

    Args:
        router: Decides.
        reports: Takes the reports of turns that are gone.

    """

    def __init__(self, *, router: Router, reports: LegReports) -> None:
        self._router = router
        self._reports = reports
        self._asked: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Decides inside of the block; at its end, waits for what is still asked."""
        async with asyncio.TaskGroup() as asked:
            self._asked = asked
            yield

    async def of(
        self, subject: Subject, *, forced: Strategy | None, excluded: AbstractSet[str]
    ) -> Decision:
        """The router's decision; raises what `Router.decide` raises."""
        if self._asked is None:
            raise RuntimeError("Decisions is used outside of its context")
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._asked.create_task(self._ask(answer, subject, forced, excluded), name="decide")
        return await answer

    async def _ask(
        self,
        answer: "asyncio.Future[Decision]",
        subject: Subject,
        forced: Strategy | None,
        excluded: AbstractSet[str],
    ) -> None:
        try:
            decision = await self._router.decide(
                subject, forced=forced, request_id=str(uuid.uuid4()), excluded=excluded
            )
        except Exception as error:  # noqa: BLE001 - whoever waits for the decision gets it
            if not answer.done():
                answer.set_exception(error)
            elif not isinstance(error, KvplaneError):
                _log.exception("the router failed on a turn whose client had left")
            return
        if answer.done():
            self._take_back(decision)
        else:
            answer.set_result(decision)

    def _take_back(self, decision: Decision) -> None:
        for kind in (LegKind.PREFILL, LegKind.DECODE):
            if kind is LegKind.DECODE or decision.prefill is not None:
                self._reports.send(
                    LegReport(
                        decision_id=decision.decision_id,
                        leg=kind,
                        outcome=RouteOutcome.CANCELLED,
                    )
                )
