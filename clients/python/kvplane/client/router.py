"""The router, for gateways that are not in its process, and for people who ask why."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc.aio

from kvplane.api.router.v1 import router_pb2, router_pb2_grpc
from kvplane.client.calls import ServiceCalls

if TYPE_CHECKING:
    from kvplane.api.router.v1.router_pb2_grpc import RouterServiceAsyncStub


class Router:
    """RouterService. Every method raises KvplaneClientError."""

    def __init__(self, channel: grpc.aio.Channel, calls: ServiceCalls) -> None:
        self._stub: RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(channel)
        self._calls = calls

    async def decide(
        self,
        subject: router_pb2.RouteSubject,
        *,
        forced_strategy: router_pb2.Strategy.ValueType = router_pb2.STRATEGY_UNSPECIFIED,
        request_id: str = "",
        excluded_engines: Sequence[str] = (),
    ) -> router_pb2.Decision:
        """Decides one turn and counts it; report each leg's outcome with `report`.

        Raises:
            UnavailableError: No engine can serve the model now; see `retry_after`.
            NotFoundError: None ever served it.
            SaturatedError: All are full; see `retry_after`.

        """
        request = router_pb2.DecideRouteRequest(
            subject=subject,
            forced_strategy=forced_strategy,
            request_id=request_id,
            excluded_engines=excluded_engines,
        )
        return (await self._calls.call(self._stub.DecideRoute, request)).decision

    async def explain(self, subject: router_pb2.RouteSubject) -> router_pb2.ExplainRouteResponse:
        """Shows every candidate for a turn. Changes nothing."""
        request = router_pb2.ExplainRouteRequest(subject=subject)
        return await self._calls.call(self._stub.ExplainRoute, request)

    async def report(self, outcome: router_pb2.ReportRouteOutcomeRequest) -> None:
        """Reports how one leg went. Idempotent by decision and leg."""
        await self._calls.call(self._stub.ReportRouteOutcome, outcome)

    async def models(self) -> tuple[str, ...]:
        """Models that some engine serves now, sorted."""
        request = router_pb2.ListRoutedModelsRequest()
        return tuple((await self._calls.call(self._stub.ListRoutedModels, request)).models)
