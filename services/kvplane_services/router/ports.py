"""What gateways ask of a router, in the same process or over gRPC."""

from collections.abc import Set as AbstractSet
from typing import Protocol

from kvplane_services.router.model import Decision, LegReport, Strategy, Subject


class Router(Protocol):
    """Decides turns. Implemented by the decider itself and by the gRPC client of one."""

    async def decide(
        self,
        subject: Subject,
        *,
        forced: Strategy | None = None,
        request_id: str = "",
        excluded: AbstractSet[str] = frozenset(),
    ) -> Decision:
        """Decides one turn and counts it until both legs are reported or the decision's TTL passes.

        Args:
            subject: The turn.
            forced: A strategy to use whatever the router thinks of it.
            request_id: UUID that makes a retry return the first answer; empty for none.
            excluded: Full names of engines to leave out.

        Raises:
            InvalidRequest: The subject or the request id is malformed, or the id was another's.
            NotFound: No engine ever served the model.
            Unavailable: No engine can take the turn now, or it is too early to tell.
            Saturated: All engines are full.
            StrategyImpossible: The forced strategy cannot be carried out.

        """
        ...

    async def report(self, report: LegReport) -> None:
        """Tells how a leg went. Idempotent by decision and leg; unknown decisions are ignored."""
        ...

    async def models(self) -> tuple[str, ...]:
        """Models that some engine decodes, sorted: those whose turns can be served."""
        ...
