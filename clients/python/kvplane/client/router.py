"""The router, for gateways that are not in its process, and for people who ask why."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvplane.api.router.v1 import router_pb2, router_pb2_grpc
from kvplane.client.calls import ServiceCalls
from kvplane.client.clock import Clock
from kvplane.client.replicas import Replicas

if TYPE_CHECKING:
    import grpc.aio

    from kvplane.api.router.v1.router_pb2_grpc import RouterServiceAsyncStub


class Router:
    """RouterService. Every method raises KvplaneClientError."""

    def __init__(self, replicas: Replicas, *, timeout: float, clock: Clock) -> None:
        self._calls = ServiceCalls(replicas=replicas, stub=_stub, timeout=timeout, clock=clock)

    async def decide(
        self,
        subject: router_pb2.RouteSubject,
        *,
        forced_strategy: router_pb2.Strategy.ValueType = router_pb2.STRATEGY_UNSPECIFIED,
        request_id: str = "",
        excluded_engines: Sequence[str] = (),
    ) -> router_pb2.Decision:
        """Decides one turn and counts it; report each leg's outcome with `report`.

        A call with a request id, a UUID4, is repeated at another router where one is away.

        Raises:
            UnavailableError: No engine can serve the model now; see `retry_after`.
            NotFoundError: None ever served it.
            SaturatedError: All are full; see `retry_after`.

        """
        decision, _ = await self.decide_at(
            subject,
            forced_strategy=forced_strategy,
            request_id=request_id,
            excluded_engines=excluded_engines,
        )
        return decision

    async def decide_at(
        self,
        subject: router_pb2.RouteSubject,
        *,
        forced_strategy: router_pb2.Strategy.ValueType = router_pb2.STRATEGY_UNSPECIFIED,
        request_id: str = "",
        excluded_engines: Sequence[str] = (),
    ) -> tuple[router_pb2.Decision, str]:
        """As `decide`; also tells the address of the router that decided, for `report`."""
        request = router_pb2.DecideRouteRequest(
            subject=subject,
            forced_strategy=forced_strategy,
            request_id=request_id,
            excluded_engines=excluded_engines,
        )
        answer, address = await self._calls.call_at(
            lambda stub: stub.DecideRoute, request, repeat=bool(request_id)
        )
        return answer.decision, address

    async def explain(self, subject: router_pb2.RouteSubject) -> router_pb2.ExplainRouteResponse:
        """Shows every candidate for a turn. Changes nothing."""
        request = router_pb2.ExplainRouteRequest(subject=subject)
        return await self._calls.call(lambda stub: stub.ExplainRoute, request, repeat=True)

    async def report(
        self, outcome: router_pb2.ReportRouteOutcomeRequest, *, address: str = ""
    ) -> None:
        """Reports how one leg went. Idempotent by decision and leg.

        Args:
            outcome: What to report.
            address: The router that decided, from `decide_at`: the others do not count the turn.

        Raises:
            UnavailableError: That router is away.

        """
        await self._calls.call_at(
            lambda stub: stub.ReportRouteOutcome, outcome, repeat=True, address=address
        )

    async def models(self) -> tuple[str, ...]:
        """Models that some engine serves now, sorted."""
        request = router_pb2.ListRoutedModelsRequest()
        answer = await self._calls.call(lambda stub: stub.ListRoutedModels, request, repeat=True)
        return tuple(answer.models)


def _stub(channel: "grpc.aio.Channel") -> "RouterServiceAsyncStub":
    return router_pb2_grpc.RouterServiceStub(channel)
