"""Leases, claims and engines' reports on the wire and back."""

from collections.abc import Iterable

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2 as pb
from kvplane_services.durations import duration, moment_of, seconds_of, timestamp
from kvplane_services.engine.wire import engine_id_of
from kvplane_services.errors import InvalidRequest
from kvplane_services.lease.model import (
    Claim,
    DigestChain,
    EndReason,
    Handle,
    Lease,
    LeaseState,
    RenewalOutcome,
)
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import Directive, EngineReport, RetentionReport
from kvplane_services.session.wire import key_from_wire, key_to_wire

_REASONS_BACK = {
    EndReason.RELEASED: pb.END_REASON_RELEASED,
    EndReason.SUPERSEDED: pb.END_REASON_SUPERSEDED,
    EndReason.EXPIRED: pb.END_REASON_EXPIRED,
    EndReason.RECLAIMED: pb.END_REASON_RECLAIMED,
    EndReason.ENGINE_LOST: pb.END_REASON_ENGINE_LOST,
    EndReason.FENCED: pb.END_REASON_FENCED,
    EndReason.CONSUMED: pb.END_REASON_CONSUMED,
}
_REASONS: dict[int, EndReason] = {value: reason for reason, value in _REASONS_BACK.items()}
_STATES_BACK = {
    LeaseState.ACTIVE: pb.Lease.STATE_ACTIVE,
    LeaseState.RELEASING: pb.Lease.STATE_RELEASING,
    LeaseState.ENDED: pb.Lease.STATE_ENDED,
}
_STATES: dict[int, LeaseState] = {value: state for state, value in _STATES_BACK.items()}
_OUTCOMES_BACK = {
    RenewalOutcome.RENEWED: pb.RENEWAL_OUTCOME_RENEWED,
    RenewalOutcome.NOT_FOUND: pb.RENEWAL_OUTCOME_NOT_FOUND,
    RenewalOutcome.FENCED: pb.RENEWAL_OUTCOME_FENCED,
    RenewalOutcome.UNAVAILABLE: pb.RENEWAL_OUTCOME_UNAVAILABLE,
}
_OUTCOMES: dict[int, RenewalOutcome] = {
    number: outcome for outcome, number in _OUTCOMES_BACK.items()
}


def lease_from_wire(message: pb.Lease) -> Lease:
    """The lease of a message. Raises InvalidRequest."""
    return Lease(
        lease_id=message.name.removeprefix("leases/"),
        session_key=key_from_wire(message.session_key),
        engine_id=engine_id_of(message.engine, field="lease.engine"),
        engine_epoch=message.engine_epoch,
        retention_id=message.retention_id,
        fencing_token=message.fencing_token,
        tokens=message.tokens,
        blocks=message.blocks,
        handle=handle_from_wire(message.handle),
        decision_id=message.decision_id,
        message_digest=message.message_digest,
        state=_STATES.get(message.state, LeaseState.ACTIVE),
        end_reason=_REASONS.get(message.end_reason),
        release_reason=_REASONS.get(message.release_reason),
        reads=message.reads,
        claims=tuple(Claim(claim.holder, seconds_of(claim.remaining)) for claim in message.claims),
        ttl=seconds_of(message.ttl),
        create_time=moment_of(message.create_time),
        expire_time=moment_of(message.expire_time),
        history_digest=message.history_digest,
    )


def lease_to_wire(lease: Lease) -> pb.Lease:
    """The message of a lease."""
    message = pb.Lease(
        name=lease.name,
        session_key=key_to_wire(lease.session_key),
        session=lease.session_key.name,
        engine=lease.engine,
        engine_epoch=lease.engine_epoch,
        retention_id=lease.retention_id,
        decision_id=lease.decision_id,
        fencing_token=lease.fencing_token,
        state=_STATES_BACK[lease.state],
        tokens=lease.tokens,
        blocks=lease.blocks,
        handle=handle_to_wire(lease.handle),
        message_digest=lease.message_digest,
        reads=lease.reads,
        claims=[
            pb.LeaseClaim(
                holder=claim.holder,
                remaining=duration(claim.remaining) if claim.remaining else None,
            )
            for claim in lease.claims
        ],
        ttl=duration(lease.ttl),
        history_digest=lease.history_digest,
    )
    if lease.end_reason is not None:
        message.end_reason = _REASONS_BACK[lease.end_reason]
    if lease.release_reason is not None:
        message.release_reason = _REASONS_BACK[lease.release_reason]
    if lease.create_time is not None:
        message.create_time.CopyFrom(timestamp(lease.create_time))
    if lease.expire_time is not None:
        message.expire_time.CopyFrom(timestamp(lease.expire_time))
    return message


def handle_from_wire(message: pb.Handle) -> Handle:
    """The handle of a message."""
    if not message.HasField("digests"):
        return Handle(message.kv_transfer_params)
    chain = message.digests
    return Handle(
        message.kv_transfer_params,
        DigestChain(chain.algorithm, chain.chunk_tokens, chain.tokens, tuple(chain.digests)),
    )


def handle_to_wire(handle: Handle) -> pb.Handle:
    """The message of a handle."""
    message = pb.Handle(kv_transfer_params=handle.kv_transfer_params)
    if handle.digests is not None:
        message.digests.algorithm = handle.digests.algorithm
        message.digests.chunk_tokens = handle.digests.chunk_tokens
        message.digests.tokens = handle.digests.tokens
        message.digests.digests.extend(handle.digests.digests)
    return message


def renewals_from_wire(messages: Iterable[pb.LeaseRenewal]) -> list[LeaseRenewal]:
    """The renewals of a frame."""
    return [
        LeaseRenewal(
            lease=message.name,
            fencing_token=message.fencing_token,
            ttl=seconds_of(message.ttl),
            drop=message.drop,
            final=message.final,
        )
        for message in messages
    ]


def renewals_to_wire(renewals: Iterable[LeaseRenewal]) -> list[pb.LeaseRenewal]:
    """The messages of renewals."""
    return [
        pb.LeaseRenewal(
            name=renewal.lease,
            fencing_token=renewal.fencing_token,
            ttl=duration(renewal.ttl),
            drop=renewal.drop,
            final=renewal.final,
        )
        for renewal in renewals
    ]


def outcome_from_wire(value: int) -> RenewalOutcome:
    """The outcome of an enum value; values that are not known count as NOT_FOUND."""
    return _OUTCOMES.get(value, RenewalOutcome.NOT_FOUND)


def outcome_to_wire(outcome: RenewalOutcome) -> pb.RenewalOutcome.ValueType:
    """The enum value of an outcome."""
    return _OUTCOMES_BACK[outcome]


def end_reason_from_wire(value: int, *, field: str) -> EndReason:
    """The reason of an enum value. Raises InvalidRequest if it is unset or unknown."""
    reason = _REASONS.get(value)
    if reason is None:
        raise InvalidRequest(f"{field} is required and must be a known reason", field=field)
    return reason


def report_from_wire(message: engine_pb2.HeartbeatEngineRequest) -> EngineReport:
    """The news in a heartbeat. Raises InvalidRequest."""
    return EngineReport(
        retentions=tuple(_retention_from_wire(retention) for retention in message.retentions),
        ended=tuple(
            (end.retention_id, end_reason_from_wire(end.reason, field=f"ended[{index}].reason"))
            for index, end in enumerate(message.ended)
        ),
        reads=tuple((read.retention_id, read.reads) for read in message.reads),
        full=message.full_report,
    )


def directive_to_wire(directive: Directive) -> engine_pb2.LeaseDirective:
    """The message of a directive."""
    message = engine_pb2.LeaseDirective(
        retention_id=directive.retention_id,
        lease=directive.lease,
        fencing_token=directive.fencing_token,
    )
    if directive.release is not None:
        message.release = _REASONS_BACK[directive.release]
    else:
        message.renew.CopyFrom(duration(directive.renew))
        message.worth = directive.worth
    return message


def _retention_from_wire(message: engine_pb2.Retention) -> RetentionReport:
    return RetentionReport(
        retention_id=message.retention_id,
        session_key=key_from_wire(message.session_key),
        tokens=message.tokens,
        blocks=message.blocks,
        handle=handle_from_wire(message.handle),
        remaining=seconds_of(message.remaining),
        decision_id=message.decision_id,
        message_digest=message.message_digest,
        lease=message.lease,
        fencing_token=message.fencing_token,
        reads=message.reads,
    )
