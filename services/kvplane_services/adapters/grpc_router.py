"""The router of another process; see `router.ports.Router`."""

import uuid
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from typing import TypeVar

from kvplane.api.router.v1 import router_pb2
from kvplane.client.backoff import Backoff
from kvplane.client.errors import KvplaneClientError, UnavailableError
from kvplane.client.plane import Plane
from kvplane_services.adapters.grpc_failures import domain_error
from kvplane_services.clock import Clock
from kvplane_services.router.model import Decision, LegReport, Strategy, Subject
from kvplane_services.router.wire import (
    STRATEGIES_TO_WIRE,
    decision_from_wire,
    report_to_wire,
    subject_to_wire,
)

T = TypeVar("T")

_ATTEMPTS = 3


class RemoteRouter:
    """Implements `Router` over RouterService.

    A call that found no router is repeated, because a restarted one is back in a moment. That
    is safe: decisions are recognised by their request id, and reports are idempotent.
    """

    def __init__(self, *, plane: Plane, clock: Clock) -> None:
        self._plane = plane
        self._clock = clock

    async def decide(
        self,
        subject: Subject,
        *,
        forced: Strategy | None = None,
        request_id: str = "",
        excluded: AbstractSet[str] = frozenset(),
    ) -> Decision:
        """See `Router.decide`."""
        message = subject_to_wire(subject)
        strategy = (
            STRATEGIES_TO_WIRE[forced] if forced is not None else router_pb2.STRATEGY_UNSPECIFIED
        )
        request_id = request_id or str(uuid.uuid4())
        return decision_from_wire(
            await self._call(
                lambda: self._plane.router.decide(
                    message,
                    forced_strategy=strategy,
                    request_id=request_id,
                    excluded_engines=sorted(excluded),
                )
            )
        )

    async def report(self, report: LegReport) -> None:
        """See `Router.report`. Raises Unavailable if no router takes it."""
        message = report_to_wire(report)
        await self._call(lambda: self._plane.router.report(message))

    async def models(self) -> tuple[str, ...]:
        """See `Router.models`. Raises Unavailable."""
        return await self._call(self._plane.router.models)

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        backoff = Backoff(first=0.05, longest=0.5)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await call()
            except UnavailableError as error:
                # An answer of the router itself names a reason.
                if error.reason or attempt == _ATTEMPTS:
                    raise domain_error(error) from error
            except KvplaneClientError as error:
                raise domain_error(error) from error
            await self._clock.sleep(backoff.next())
        raise AssertionError("unreachable: the last attempt returns or raises")
