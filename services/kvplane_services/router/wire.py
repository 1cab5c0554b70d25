"""Decisions on the wire and back."""

from kvplane.api.router.v1 import router_pb2 as pb
from kvplane_services.durations import duration, seconds_of
from kvplane_services.engine.wire import fixed_retention_from_wire, fixed_retention_to_wire
from kvplane_services.errors import InvalidRequest
from kvplane_services.router.model import (
    Candidate,
    Decision,
    DecisionReason,
    Explanation,
    KeptTurn,
    Leg,
    LegKind,
    LegReport,
    RouteOutcome,
    Strategy,
    StrategyCandidate,
    Subject,
)
from kvplane_services.session.wire import key_from_wire, key_to_wire

# The most that one request may carry; enough for any conversation.
_MAX_DIGESTS = 4096
_MAX_DIGEST_BYTES = 64
_MAX_BLOCK_HASHES = 65_536

STRATEGIES_TO_WIRE = {
    Strategy.LOCAL: pb.STRATEGY_LOCAL,
    Strategy.PULL: pb.STRATEGY_PULL,
    Strategy.RECOMPUTE: pb.STRATEGY_RECOMPUTE,
}
_REASONS_TO_WIRE = {
    DecisionReason.FORCED: pb.DECISION_REASON_FORCED,
    DecisionReason.LEASE_LIVE: pb.DECISION_REASON_LEASE_LIVE,
    DecisionReason.NO_LEASE: pb.DECISION_REASON_NO_LEASE,
    DecisionReason.LEASE_ENDED: pb.DECISION_REASON_LEASE_ENDED,
    DecisionReason.HISTORY_TOO_SHORT: pb.DECISION_REASON_HISTORY_TOO_SHORT,
    DecisionReason.HOLDER_UNAVAILABLE: pb.DECISION_REASON_HOLDER_UNAVAILABLE,
    DecisionReason.NO_PREFILL_ENGINE: pb.DECISION_REASON_NO_PREFILL_ENGINE,
    DecisionReason.STOCK_CONNECTOR: pb.DECISION_REASON_STOCK_CONNECTOR,
    DecisionReason.CHEAPEST: pb.DECISION_REASON_CHEAPEST,
    DecisionReason.EXPLORING: pb.DECISION_REASON_EXPLORING,
}
_LEGS_TO_WIRE = {LegKind.PREFILL: pb.LEG_KIND_PREFILL, LegKind.DECODE: pb.LEG_KIND_DECODE}
_OUTCOMES_TO_WIRE = {
    RouteOutcome.SUCCEEDED: pb.ROUTE_OUTCOME_SUCCEEDED,
    RouteOutcome.FAILED: pb.ROUTE_OUTCOME_FAILED,
    RouteOutcome.CANCELLED: pb.ROUTE_OUTCOME_CANCELLED,
    RouteOutcome.REFUSED: pb.ROUTE_OUTCOME_REFUSED,
}
_STRATEGIES: dict[int, Strategy] = {value: one for one, value in STRATEGIES_TO_WIRE.items()}
_REASONS: dict[int, DecisionReason] = {value: one for one, value in _REASONS_TO_WIRE.items()}
_LEGS: dict[int, LegKind] = {value: one for one, value in _LEGS_TO_WIRE.items()}
_OUTCOMES: dict[int, RouteOutcome] = {value: one for one, value in _OUTCOMES_TO_WIRE.items()}


def subject_from_wire(message: pb.RouteSubject) -> Subject:
    """The subject of a request. Raises InvalidRequest."""
    if len(message.message_digests) > _MAX_DIGESTS:
        raise InvalidRequest(
            f"subject.message_digests has more than {_MAX_DIGESTS} entries",
            field="subject.message_digests",
        )
    if any(not 0 < len(digest) <= _MAX_DIGEST_BYTES for digest in message.message_digests):
        raise InvalidRequest(
            f"subject.message_digests: each has 1 to {_MAX_DIGEST_BYTES} bytes",
            field="subject.message_digests",
        )
    if len(message.block_hashes) > _MAX_BLOCK_HASHES:
        raise InvalidRequest(
            f"subject.block_hashes has more than {_MAX_BLOCK_HASHES} entries",
            field="subject.block_hashes",
        )
    if len(message.history_digest) > _MAX_DIGEST_BYTES:
        raise InvalidRequest(
            f"subject.history_digest has more than {_MAX_DIGEST_BYTES} bytes",
            field="subject.history_digest",
        )
    if message.prompt_tokens < 0 or message.max_output_tokens < 0:
        raise InvalidRequest("subject: token counts are not negative", field="subject")
    return Subject(
        session_key=key_from_wire(message.session_key),
        message_digests=tuple(message.message_digests),
        prompt_tokens=message.prompt_tokens,
        max_output_tokens=message.max_output_tokens,
        block_hashes=tuple(message.block_hashes),
        history_digest=message.history_digest,
    )


def subject_to_wire(subject: Subject) -> pb.RouteSubject:
    """The message of a subject."""
    return pb.RouteSubject(
        session_key=key_to_wire(subject.session_key),
        message_digests=subject.message_digests,
        prompt_tokens=subject.prompt_tokens,
        max_output_tokens=subject.max_output_tokens,
        block_hashes=subject.block_hashes,
        history_digest=subject.history_digest,
    )


def strategy_from_wire(value: int, *, field: str) -> Strategy | None:
    """The strategy; None if it is left to the router. Raises InvalidRequest if unknown."""
    if value == pb.STRATEGY_UNSPECIFIED:
        return None
    strategy = _STRATEGIES.get(value)
    if strategy is None:
        raise InvalidRequest(f"{field}: {value} is no strategy of this router", field=field)
    return strategy


def decision_to_wire(decision: Decision) -> pb.Decision:
    """The message of a decision."""
    return pb.Decision(
        decision_id=decision.decision_id,
        strategy=STRATEGIES_TO_WIRE[decision.strategy],
        reason=_REASONS_TO_WIRE[decision.reason],
        details=decision.details,
        prefill=_leg_to_wire(decision.prefill) if decision.prefill is not None else None,
        decode=_leg_to_wire(decision.decode),
        session_key=key_to_wire(decision.session_key),
        lease=decision.lease,
        fencing_token=decision.fencing_token,
        held_tokens=decision.held_tokens,
        ttl=duration(decision.ttl),
        waited=duration(decision.waited),
    )


def decision_from_wire(message: pb.Decision) -> Decision:
    """The decision of a message.

    Raises:
        InvalidRequest: It has a strategy that this version does not know.

    """
    strategy = strategy_from_wire(message.strategy, field="decision.strategy")
    if strategy is None:
        raise InvalidRequest("decision.strategy is missing", field="decision.strategy")
    # A newer router may know more reasons; they change nothing in what to do.
    reason = _REASONS.get(message.reason, DecisionReason.CHEAPEST)
    return Decision(
        decision_id=message.decision_id,
        strategy=strategy,
        reason=reason,
        details=message.details,
        prefill=_leg_from_wire(message.prefill) if message.HasField("prefill") else None,
        decode=_leg_from_wire(message.decode),
        session_key=key_from_wire(message.session_key),
        lease=message.lease,
        fencing_token=message.fencing_token,
        held_tokens=message.held_tokens,
        ttl=seconds_of(message.ttl),
        waited=seconds_of(message.waited),
    )


def report_from_wire(message: pb.ReportRouteOutcomeRequest) -> LegReport:
    """The report of a request. Raises InvalidRequest."""
    if not message.decision_id:
        raise InvalidRequest("decision_id is required", field="decision_id")
    leg = _LEGS.get(message.leg)
    if leg is None:
        raise InvalidRequest("leg is required: PREFILL or DECODE", field="leg")
    if message.outcome == pb.ROUTE_OUTCOME_UNSPECIFIED:
        raise InvalidRequest("outcome is required", field="outcome")
    return LegReport(
        decision_id=message.decision_id,
        leg=leg,
        # An outcome that only newer gateways know is no success.
        outcome=_OUTCOMES.get(message.outcome, RouteOutcome.FAILED),
        time_to_first_byte=seconds_of(message.time_to_first_byte),
        duration=seconds_of(message.duration),
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        output_tokens=message.output_tokens,
        kept=(
            KeptTurn(message.kept.kv_transfer_params, message.kept.history_digest)
            if message.HasField("kept")
            else None
        ),
    )


def report_to_wire(report: LegReport) -> pb.ReportRouteOutcomeRequest:
    """The request that carries a report."""
    return pb.ReportRouteOutcomeRequest(
        decision_id=report.decision_id,
        leg=_LEGS_TO_WIRE[report.leg],
        outcome=_OUTCOMES_TO_WIRE[report.outcome],
        time_to_first_byte=duration(report.time_to_first_byte),
        duration=duration(report.duration),
        prompt_tokens=report.prompt_tokens,
        cached_tokens=report.cached_tokens,
        output_tokens=report.output_tokens,
        kept=(
            pb.KeptTurn(
                kv_transfer_params=report.kept.handle, history_digest=report.kept.history_digest
            )
            if report.kept is not None
            else None
        ),
    )


def explanation_to_wire(explanation: Explanation) -> pb.ExplainRouteResponse:
    """The response that carries an explanation."""
    decision = explanation.decision
    return pb.ExplainRouteResponse(
        decision=decision_to_wire(decision) if decision is not None else None,
        failure=explanation.failure,
        candidates=[_candidate_to_wire(one) for one in explanation.candidates],
        strategies=[_strategy_to_wire(one) for one in explanation.strategies],
    )


def _candidate_to_wire(candidate: Candidate) -> pb.RouteCandidate:
    return pb.RouteCandidate(
        engine=candidate.engine,
        leg=_LEGS_TO_WIRE[candidate.leg],
        score=candidate.score,
        scores=dict(candidate.scores),
        rejection=candidate.rejection,
        in_flight=candidate.in_flight,
    )


def _strategy_to_wire(candidate: StrategyCandidate) -> pb.StrategyCandidate:
    return pb.StrategyCandidate(
        strategy=STRATEGIES_TO_WIRE[candidate.strategy],
        predicted_ms=candidate.predicted_ms,
        rejection=candidate.rejection,
    )


def _leg_to_wire(leg: Leg) -> pb.Leg:
    return pb.Leg(
        engine=leg.engine,
        epoch=leg.epoch,
        endpoint=leg.endpoint,
        kv_transfer_params=leg.kv_transfer_params,
        data_parallel_rank=leg.data_parallel_rank,
        fixed_retention=(
            fixed_retention_to_wire(leg.fixed_retention)
            if leg.fixed_retention is not None
            else None
        ),
    )


def _leg_from_wire(message: pb.Leg) -> Leg:
    return Leg(
        engine=message.engine,
        epoch=message.epoch,
        endpoint=message.endpoint,
        kv_transfer_params=message.kv_transfer_params,
        data_parallel_rank=(
            message.data_parallel_rank if message.HasField("data_parallel_rank") else None
        ),
        fixed_retention=(
            fixed_retention_from_wire(message.fixed_retention)
            if message.HasField("fixed_retention")
            else None
        ),
    )
