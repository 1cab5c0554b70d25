"""The router of another process; see `router.ports.Router`."""

import uuid
from collections.abc import Awaitable
from collections.abc import Set as AbstractSet
from typing import TypeVar

from kvplane.api.router.v1 import router_pb2
from kvplane.client.errors import KvplaneClientError
from kvplane.client.plane import Plane
from kvplane_services.adapters.grpc_failures import domain_error
from kvplane_services.router.model import Decision, LegKind, LegReport, Strategy, Subject
from kvplane_services.router.remembered import Remembered
from kvplane_services.router.wire import (
    STRATEGIES_TO_WIRE,
    decision_from_wire,
    report_to_wire,
    subject_to_wire,
)

T = TypeVar("T")

# Decisions whose router is remembered until their turn is over.
_MOST_TURNS = 100_000


class RemoteRouter:
    """Implements `Router` over RouterService, of one router or of several replicas.

    A call that finds its router away is repeated, at another one if there are several. That is
    safe: a router recognises decisions by their request id, and reports are idempotent. A turn
    that was counted by a router which then went away before it answered is counted there until
    its decision's TTL passes, if that router is still alive.

    Reports go to the router that decided, for only that one counts the turn. If it is gone its
    counts are too; if it merely cannot be reached it notices the end of most turns by what their
    engines retain.
    """

    def __init__(self, *, plane: Plane) -> None:
        self._plane = plane
        self._deciders: Remembered[str, str] = Remembered(_MOST_TURNS)

    async def decide(
        self,
        subject: Subject,
        *,
        forced: Strategy | None = None,
        request_id: str = "",
        excluded: AbstractSet[str] = frozenset(),
    ) -> Decision:
        """See `Router.decide`."""
        strategy = (
            STRATEGIES_TO_WIRE[forced] if forced is not None else router_pb2.STRATEGY_UNSPECIFIED
        )
        answer, address = await _domain(
            self._plane.router.decide_at(
                subject_to_wire(subject),
                forced_strategy=strategy,
                request_id=request_id or str(uuid.uuid4()),
                excluded_engines=sorted(excluded),
            )
        )
        decision = decision_from_wire(answer)
        self._deciders.put(decision.decision_id, address)
        return decision

    async def report(self, report: LegReport) -> None:
        """See `Router.report`. Raises Unavailable if the router that decided is away."""
        address = self._deciders.get(report.decision_id) or ""
        if report.leg is LegKind.DECODE:
            self._deciders.forget(report.decision_id)
        await _domain(self._plane.router.report(report_to_wire(report), address=address))

    async def models(self) -> tuple[str, ...]:
        """See `Router.models`. Raises Unavailable."""
        return await _domain(self._plane.router.models())


async def _domain(call: Awaitable[T]) -> T:
    try:
        return await call
    except KvplaneClientError as error:
        raise domain_error(error) from error
