"""One turn as the client asked for it, and one attempt at serving it."""

import uuid
from dataclasses import dataclass

from multidict import CIMultiDictProxy

from kvplane_services.clock import Clock
from kvplane_services.gateway.body import ClientBody
from kvplane_services.gateway.instruments import Instruments
from kvplane_services.gateway.leg_reports import LegReports, OpenLeg
from kvplane_services.router.model import Decision, LegKind, RouteOutcome, Strategy, Subject


@dataclass(frozen=True, slots=True)
class Turn:
    """What the client asked for.

    Attributes:
        turn_id: Made by the gateway; the legs' request ids begin with it.
        path: The API's path, the same at the engines.
        headers: The client's.
        body: The client's.
        subject: What the router needs to know of it.
        forced: The strategy that the client forces, if it may and does.

    """

    turn_id: str
    path: str
    headers: CIMultiDictProxy[str]
    body: ClientBody
    subject: Subject
    forced: Strategy | None = None

    @staticmethod
    def new_id() -> str:
        """A fresh turn id."""
        return uuid.uuid4().hex

    @property
    def wants_stream(self) -> bool:
        """Whether the client asked for a stream of events."""
        return self.body.has("stream")


class Attempt:
    """One decision for a turn and its legs, each of which is reported exactly once.

    Args:
        number: 1 for the first attempt of a turn.
        decision: The router's.
        reports: Takes the legs' reports.
        clock: Tells durations.
        instruments: Counts and measures.

    """

    def __init__(
        self,
        *,
        number: int,
        decision: Decision,
        reports: LegReports,
        clock: Clock,
        instruments: Instruments,
    ) -> None:
        def leg(kind: LegKind) -> OpenLeg:
            return OpenLeg(
                decision=decision,
                kind=kind,
                reports=reports,
                clock=clock,
                instruments=instruments,
            )

        self.number = number
        self.decision = decision
        self.prefill = None if decision.prefill is None else leg(LegKind.PREFILL)
        self.decode = leg(LegKind.DECODE)

    def end(self, outcome: RouteOutcome) -> None:
        """Ends what is still open with `outcome`."""
        if self.prefill is not None:
            self.prefill.end(outcome)
        self.decode.end(outcome)
