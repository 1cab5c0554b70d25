"""Sessions on the wire and back."""

import sys

from kvplane.api.session.v1 import session_pb2 as pb
from kvplane_services.durations import duration, moment_of, seconds_of, timestamp
from kvplane_services.session.model import Session, SessionHints, SessionKey, SessionState, Turn

_STATES = {
    SessionState.IDLE: pb.Session.STATE_IDLE,
    SessionState.RETAINED: pb.Session.STATE_RETAINED,
    SessionState.ENDED: pb.Session.STATE_ENDED,
}
_STATES_BACK = {value: state for state, value in _STATES.items()}


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


def session_from_wire(message: pb.Session) -> Session:
    """The session of a message."""
    return Session(
        key=key_from_wire(message.key),
        state=_STATES_BACK.get(message.state, SessionState.IDLE),
        lease=message.lease,
        engine=message.engine,
        turns=tuple(_turn_from_wire(turn) for turn in message.turns),
        turn_count=message.turn_count,
        hints=hints_from_wire(message.hints),
        create_time=moment_of(message.create_time),
        update_time=moment_of(message.update_time),
        expire_time=moment_of(message.expire_time),
        etag=message.etag,
    )


def _turn_from_wire(message: pb.Turn) -> Turn:
    return Turn(
        decision_id=message.decision_id,
        lease=message.lease,
        engine=message.engine,
        tokens=message.tokens,
        finish_time=moment_of(message.finish_time),
        end_reason=message.end_reason,
    )


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
