from dataclasses import replace

import pytest

from kvplane.api.router.v1 import router_pb2 as pb
from kvplane_services.engine.model import ConnectorKind, FixedRetention
from kvplane_services.errors import InvalidRequest
from kvplane_services.router import wire
from kvplane_services.router.model import (
    DecisionReason,
    KeptTurn,
    LegKind,
    LegReport,
    RouteOutcome,
    Strategy,
    Subject,
)
from kvplane_services.router.servicer import RouterServicer
from tests.unit.router.fleet import Fleet, decode, key, lease, prefill, subject


async def test_decision_survives_the_wire() -> None:
    """A decision that goes over the wire comes back as it was."""
    fleet = Fleet(prefill(), replace(decode(), data_parallel_rank=0, data_parallel_size=2))
    fleet.grant(lease())
    decision = await fleet.router.decide(subject())
    assert decision.decode.data_parallel_rank == 0
    assert wire.decision_from_wire(wire.decision_to_wire(decision)) == decision
    alone = await fleet.router.decide(subject("x"), forced=Strategy.LOCAL)
    assert wire.decision_from_wire(wire.decision_to_wire(alone)) == alone


async def test_a_decision_for_a_stock_engine_survives_the_wire() -> None:
    """With its empty parameters, and how the engine keeps turns."""
    fixed = FixedRetention(480.0, trust_history=True)
    stock = ConnectorKind.STOCK
    fleet = Fleet(prefill(connector=stock), decode(connector=stock, fixed=fixed))
    decision = await fleet.router.decide(subject())
    assert decision.decode.fixed_retention == fixed
    assert wire.decision_from_wire(wire.decision_to_wire(decision)) == decision


@pytest.mark.parametrize("reason", list(DecisionReason))
@pytest.mark.parametrize("strategy", list(Strategy))
async def test_every_reason_and_strategy_has_a_value(
    reason: DecisionReason, strategy: Strategy
) -> None:
    """No member of the model is missing from the contract."""
    decision = await Fleet(prefill(), decode()).router.decide(subject())
    changed = replace(decision, reason=reason, strategy=strategy)
    assert wire.decision_from_wire(wire.decision_to_wire(changed)) == changed


def test_subject_survives_the_wire() -> None:
    """A subject comes back as it was, empty session id included."""
    one = Subject(key(""), (b"1", b"2"), 10, 20, (b"h",), b"so far")
    assert wire.subject_from_wire(wire.subject_to_wire(one)) == one


@pytest.mark.parametrize("leg", list(LegKind))
@pytest.mark.parametrize("outcome", list(RouteOutcome))
def test_report_survives_the_wire(leg: LegKind, outcome: RouteOutcome) -> None:
    """A report comes back as it was."""
    report = LegReport("id", leg, outcome, 0.25, 1.5, 10, 5, 3, KeptTurn(b"{}", b"so far"))
    assert wire.report_from_wire(wire.report_to_wire(report)) == report


def test_unknown_reason_is_taken_and_unknown_outcome_is_no_success() -> None:
    """What a newer version may add is understood as far as it matters."""
    report = pb.ReportRouteOutcomeRequest(
        decision_id="id",
        leg=pb.LEG_KIND_DECODE,
        outcome=99,  # type: ignore[arg-type]
    )
    assert wire.report_from_wire(report).outcome is RouteOutcome.FAILED


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ReportRouteOutcomeRequest(leg=pb.LEG_KIND_DECODE), "decision_id"),
        (pb.ReportRouteOutcomeRequest(decision_id="id"), "leg"),
        (pb.ReportRouteOutcomeRequest(decision_id="id", leg=pb.LEG_KIND_DECODE), "outcome"),
    ],
)
def test_malformed_report_names_its_field(
    request_: pb.ReportRouteOutcomeRequest, field: str
) -> None:
    """A report without a required field is refused by that field."""
    with pytest.raises(InvalidRequest) as refused:
        wire.report_from_wire(request_)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "message",
    [
        pb.RouteSubject(message_digests=[b"x"] * 5000),
        pb.RouteSubject(message_digests=[b""]),
        pb.RouteSubject(message_digests=[b"x" * 65]),
        pb.RouteSubject(prompt_tokens=-1),
    ],
)
def test_malformed_subject_is_refused(message: pb.RouteSubject) -> None:
    """Too many or too large digests, and negative counts, are refused."""
    with pytest.raises(InvalidRequest):
        wire.subject_from_wire(message)


async def test_servicer_decides_explains_reports_and_lists() -> None:
    """The service does what the router does, in the contract's words."""
    fleet = Fleet(prefill(), decode("d"), decode("e"))
    servicer = RouterServicer(router=fleet.router, explainer=fleet.explainer)
    request = pb.DecideRouteRequest(
        subject=wire.subject_to_wire(subject()),
        forced_strategy=pb.STRATEGY_LOCAL,
        excluded_engines=["engines/d"],
    )
    decision = (await servicer.DecideRoute(request, None)).decision
    assert decision.strategy == pb.STRATEGY_LOCAL
    assert decision.decode.engine == "engines/e"
    assert not decision.HasField("prefill")
    explained = await servicer.ExplainRoute(
        pb.ExplainRouteRequest(subject=wire.subject_to_wire(subject())), None
    )
    assert {one.engine: one.in_flight for one in explained.candidates}["engines/e"] == 1
    assert len(explained.strategies) == 3
    await servicer.ReportRouteOutcome(
        pb.ReportRouteOutcomeRequest(
            decision_id=decision.decision_id,
            leg=pb.LEG_KIND_DECODE,
            outcome=pb.ROUTE_OUTCOME_CANCELLED,
        ),
        None,
    )
    assert len(fleet.in_flight) == 0
    models = await servicer.ListRoutedModels(pb.ListRoutedModelsRequest(), None)
    assert models.models == ["m"]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.DecideRouteRequest(excluded_engines=["d"]), "excluded_engines"),
        (
            pb.DecideRouteRequest(forced_strategy=99),  # type: ignore[arg-type]
            "forced_strategy",
        ),
    ],
)
async def test_servicer_refuses_malformed_requests(
    request_: pb.DecideRouteRequest, field: str
) -> None:
    """A malformed request is refused by its field, before anything is counted."""
    fleet = Fleet(prefill(), decode())
    servicer = RouterServicer(router=fleet.router, explainer=fleet.explainer)
    request_.subject.CopyFrom(wire.subject_to_wire(subject()))
    with pytest.raises(InvalidRequest) as refused:
        await servicer.DecideRoute(request_, None)
    assert refused.value.field == field
    assert len(fleet.in_flight) == 0
