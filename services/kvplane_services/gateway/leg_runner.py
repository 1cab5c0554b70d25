"""What both legs of a turn need: the collaborators, and a leg's request made of its turn."""

from dataclasses import dataclass

from aiohttp import web

from kvplane_services.clock import Clock
from kvplane_services.gateway import headers
from kvplane_services.gateway.body_work import BodyWork
from kvplane_services.gateway.config import GatewayConfig
from kvplane_services.gateway.decisions import Decisions
from kvplane_services.gateway.engine_answers import EngineAnswer
from kvplane_services.gateway.engine_client import EngineClient, LegRequest
from kvplane_services.gateway.history import TrustedModels
from kvplane_services.gateway.instruments import Instruments
from kvplane_services.gateway.leg_reports import LegReports
from kvplane_services.gateway.turn import Attempt, Turn
from kvplane_services.router.model import Leg, LegKind
from kvplane_services.telemetry import Telemetry


class LegRefused(Exception):
    """An engine refused a leg; `answer` is for the client."""

    def __init__(self, answer: web.Response) -> None:
        super().__init__(answer.status)
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class LegRunner:
    """Collaborators of whoever runs legs.

    Attributes:
        decisions: Gets the router's decisions.
        engines: Carries legs to engines.
        work: Makes the legs' bodies.
        reports: Takes the legs' reports.
        config: The gateway's.
        clock: Tells durations.
        telemetry: Spans.
        instruments: Counts and measures.
        trusted: Told of each decision.

    """

    decisions: Decisions
    engines: EngineClient
    work: BodyWork
    reports: LegReports
    config: GatewayConfig
    clock: Clock
    telemetry: Telemetry
    instruments: Instruments
    trusted: TrustedModels

    def request(
        self,
        turn: Turn,
        attempt: Attempt,
        leg: Leg,
        *,
        kind: LegKind,
        body: bytes,
        silence: float | None = None,
        deadline: float | None = None,
    ) -> LegRequest:
        """The request of a leg; `silence` and `deadline` as in `LegRequest`."""
        tenant_header = self.config.tenant_header.lower()
        # Clients see the decode leg's id in the answer's.
        parts = [turn.turn_id]
        if attempt.number > 1:
            parts.append(str(attempt.number))
        if kind is LegKind.PREFILL:
            parts.append("prefill")
        return LegRequest(
            url=leg.endpoint.rstrip("/") + turn.path,
            headers=headers.to_engine(
                turn.headers,
                request_id="-".join(parts),
                data_parallel_rank=leg.data_parallel_rank,
                trace=self.telemetry.trace_headers(),
                without=(tenant_header,) if tenant_header else (),
            ),
            body=body,
            silence=silence,
            deadline=deadline,
        )

    def count_tokens(self, kind: LegKind, answer: EngineAnswer) -> None:
        """Counts the tokens that an answer tells of."""
        for name, tokens in (
            ("prompt", answer.prompt_tokens),
            ("cached", answer.cached_tokens),
            ("output", answer.output_tokens),
        ):
            if tokens:
                self.instruments.tokens.add(tokens, {"leg": kind.value, "kind": name})
