"""RouterService over a decider and an explainer."""

from typing import Any

from kvplane.api.router.v1 import router_pb2 as pb
from kvplane.api.router.v1 import router_pb2_grpc
from kvplane_services.engine.wire import engine_id_of
from kvplane_services.router import wire
from kvplane_services.router.explain import Explainer
from kvplane_services.router.ports import Router


class RouterServicer(router_pb2_grpc.RouterServiceServicer):
    """See router.proto. Domain errors are translated by the server."""

    def __init__(self, *, router: Router, explainer: Explainer) -> None:
        self._router = router
        self._explainer = explainer

    async def DecideRoute(
        self, request: pb.DecideRouteRequest, context: Any
    ) -> pb.DecideRouteResponse:
        """See router.proto."""
        del context
        for engine in request.excluded_engines:
            engine_id_of(engine, field="excluded_engines")
        decision = await self._router.decide(
            wire.subject_from_wire(request.subject),
            forced=wire.strategy_from_wire(request.forced_strategy, field="forced_strategy"),
            request_id=request.request_id,
            excluded=frozenset(request.excluded_engines),
        )
        return pb.DecideRouteResponse(decision=wire.decision_to_wire(decision))

    async def ExplainRoute(
        self, request: pb.ExplainRouteRequest, context: Any
    ) -> pb.ExplainRouteResponse:
        """See router.proto."""
        del context
        explanation = self._explainer.explain(wire.subject_from_wire(request.subject))
        return wire.explanation_to_wire(explanation)

    async def ReportRouteOutcome(
        self, request: pb.ReportRouteOutcomeRequest, context: Any
    ) -> pb.ReportRouteOutcomeResponse:
        """See router.proto."""
        del context
        await self._router.report(wire.report_from_wire(request))
        return pb.ReportRouteOutcomeResponse()

    async def ListRoutedModels(
        self, request: pb.ListRoutedModelsRequest, context: Any
    ) -> pb.ListRoutedModelsResponse:
        """See router.proto."""
        del request, context
        return pb.ListRoutedModelsResponse(models=await self._router.models())
