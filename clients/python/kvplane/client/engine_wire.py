"""Translates between an engine's plain data and the frames of EngineService."""

from collections.abc import Iterable, Iterator

from google.protobuf.duration_pb2 import Duration

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.api.session.v1 import session_pb2
from kvplane.client.retention import (
    Directive,
    EndReason,
    EngineLoad,
    Release,
    Renew,
    Report,
    Retention,
)
from kvplane.digest import DigestChain


def frame_of(
    report: Report,
    load: EngineLoad,
    *,
    sequence: int,
    name: str,
    epoch: int,
    full: bool,
    now: float,
) -> engine_pb2.HeartbeatEngineRequest:
    """One heartbeat; `now` is the monotonic time from which remaining durations are counted."""
    return engine_pb2.HeartbeatEngineRequest(
        sequence=sequence,
        name=name,
        epoch=epoch,
        load=engine_pb2.EngineLoad(
            running_requests=load.running_requests,
            waiting_requests=load.waiting_requests,
            used_blocks=load.used_blocks,
            retained_blocks=load.retained_blocks,
            retentions=load.retentions,
        ),
        full_report=full,
        retentions=[_retention(one, now) for one in report.retentions],
        ended=[
            engine_pb2.RetentionEnd(retention_id=name, reason=_reason_to_wire(reason))
            for name, reason in report.ended
        ],
        reads=[
            engine_pb2.RetentionRead(retention_id=name, reads=reads) for name, reads in report.reads
        ],
    )


def directives_of(directives: Iterable[engine_pb2.LeaseDirective]) -> Iterator[Directive]:
    """The directives of an answer; those of a kind that this version does not know are left out."""
    for one in directives:
        match one.WhichOneof("directive"):
            case "renew":
                ttl = seconds_of(one.renew)
                yield Renew(one.retention_id, one.lease, one.fencing_token, ttl, one.worth)
            case "release":
                reason = _reason_from_wire(one.release)
                yield Release(one.retention_id, one.lease, one.fencing_token, reason)
            case _:
                continue


def seconds_of(duration: Duration) -> float:
    """A duration in seconds."""
    return duration.ToNanoseconds() / 1e9


def duration_of(seconds: float) -> Duration:
    """A duration for the wire; negative ones become zero."""
    duration = Duration()
    duration.FromNanoseconds(max(0, round(seconds * 1e9)))
    return duration


def _retention(one: Retention, now: float) -> engine_pb2.Retention:
    tenant, model, adapter, session_id = one.session_key
    return engine_pb2.Retention(
        retention_id=one.retention_id,
        session_key=session_pb2.SessionKey(
            tenant=tenant, model=model, adapter=adapter, session_id=session_id
        ),
        decision_id=one.decision_id,
        tokens=one.tokens,
        blocks=one.blocks,
        handle=lease_pb2.Handle(
            kv_transfer_params=one.kv_transfer_params,
            digests=_digests(one.digests) if one.digests is not None else None,
        ),
        message_digest=one.message_digest,
        remaining=duration_of(one.deadline - now),
        lease=one.lease,
        fencing_token=one.fencing_token,
        reads=one.reads,
    )


def _digests(chain: DigestChain) -> lease_pb2.DigestChain:
    return lease_pb2.DigestChain(
        algorithm=chain.algorithm,
        chunk_tokens=chain.chunk_tokens,
        tokens=chain.tokens,
        digests=chain.digests,
    )


def _reason_to_wire(reason: EndReason) -> lease_pb2.EndReason.ValueType:
    return lease_pb2.EndReason.ValueType(int(reason))


def _reason_from_wire(reason: int) -> EndReason:
    try:
        return EndReason(reason)
    except ValueError:
        # A newer plane may know more reasons; that it is over is what counts.
        return EndReason.UNSPECIFIED
