"""Sessions on the wire and back."""

import sys

from kvplane.api.session.v1 import session_pb2 as pb
from kvplane_services.durations import duration, seconds_of, timestamp
from kvplane_services.session.model import Session, SessionHints, SessionKey, SessionState, Turn

_STATES = {
    SessionState.IDLE: pb.Session.STATE_IDLE,
    SessionState.RETAINED: pb.Session.STATE_RETAINED,
    SessionState.ENDED: pb.Session.STATE_ENDED,
}


def key_from_wire(message: pb.SessionKey) -> SessionKey:
    """The key of a message, not yet validated."""
    # Many sessions share these: one text each instead of one per session.
    tenant, model, adapter = map(sys.intern, (message.tenant, message.model, message.adapter))
    return SessionKey(tenant, model, adapter, message.session_id)


def key_to_wire(key: SessionKey) -> pb.SessionKey:
    """The message of a key."""
    return pb.SessionKey(
        tenant=key.tenant, model=key.model, adapter=key.adapter, session_id=key.session_id
    )


def hints_from_wire(message: pb.SessionHints) -> SessionHints:
    """The hints of a message."""
    return SessionHints(keep_for=seconds_of(message.keep_for), final_turn=message.final_turn)


def session_to_wire(session: Session) -> pb.Session:
    """The message of a session."""
    message = pb.Session(
        name=session.name,
        key=key_to_wire(session.key),
        state=_STATES[session.state],
        lease=session.lease,
        engine=session.engine,
        turns=[_turn_to_wire(turn) for turn in session.turns],
        turn_count=session.turn_count,
        hints=pb.SessionHints(
            keep_for=duration(session.hints.keep_for), final_turn=session.hints.final_turn
        ),
        etag=session.etag,
    )
    if session.create_time is not None:
        message.create_time.CopyFrom(timestamp(session.create_time))
    if session.update_time is not None:
        message.update_time.CopyFrom(timestamp(session.update_time))
    if session.expire_time is not None:
        message.expire_time.CopyFrom(timestamp(session.expire_time))
    return message


def _turn_to_wire(turn: Turn) -> pb.Turn:
    message = pb.Turn(
        decision_id=turn.decision_id,
        lease=turn.lease,
        engine=turn.engine,
        tokens=turn.tokens,
        end_reason=turn.end_reason,
    )
    if turn.finish_time is not None:
        message.finish_time.CopyFrom(timestamp(turn.finish_time))
    return message
