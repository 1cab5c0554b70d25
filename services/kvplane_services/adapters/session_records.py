"""Sessions as a store holds them: see records/v1/session.proto."""

import datetime as dt
import sys

from google.protobuf.message import DecodeError

from kvplane.api.lease.v1 import lease_pb2
from kvplane.api.session.v1 import session_pb2
from kvplane_services.records.v1 import session_pb2 as pb
from kvplane_services.session.model import SessionHints, SessionState
from kvplane_services.session.record import KnownTurn, PackedRecord, SessionRecord

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
# Durations that are longer, or no numbers, are of damaged records.
_LONGEST = 1e9
_STATES_BACK = {
    SessionState.IDLE: session_pb2.Session.STATE_IDLE,
    SessionState.RETAINED: session_pb2.Session.STATE_RETAINED,
    SessionState.ENDED: session_pb2.Session.STATE_ENDED,
}
_STATES = {value: state for state, value in _STATES_BACK.items()}
_REASON = "END_REASON_"
_REASONS_BACK = {
    name.removeprefix(_REASON): value for name, value in lease_pb2.EndReason.items() if value
}
_REASONS = {value: name for name, value in _REASONS_BACK.items()}


class SessionCodec:
    """Implements `kvplane_services.session.record.RecordCodec`."""

    def pack(self, record: SessionRecord) -> PackedRecord:
        """See `RecordCodec.pack`."""
        live = _live_turn(record)
        message = pb.SessionRecord(
            state=_STATES_BACK[record.state],
            lease_id="" if live else record.lease_id,
            engine_id="" if live else record.engine_id,
            live_turn=live,
            turns=[_turn_to_wire(turn) for turn in record.turns],
            turn_count=record.turn_count,
            keep_for=record.hints.keep_for,
            final_turn=record.hints.final_turn,
            wish=record.wish,
            token=record.token,
            ttl=record.ttl,
            over_token=record.over_token,
            hidden_token=record.hidden_token,
            final_token=record.final_token,
            deleted=record.deleted,
            request_id=record.request_id,
            create_time=_microseconds(record.create_time),
            update_time=_microseconds(record.update_time),
        )
        return PackedRecord(message.SerializeToString(deterministic=True))

    def unpack(self, packed: PackedRecord) -> SessionRecord:
        """See `RecordCodec.unpack`."""
        message = pb.SessionRecord.FromString(packed)
        turns = tuple(_turn_from_wire(turn) for turn in message.turns)
        lease_id, engine_id = message.lease_id, message.engine_id
        if 0 < message.live_turn <= len(turns):
            live = turns[message.live_turn - 1]
            lease_id, engine_id = live.lease_id, live.engine_id
        return SessionRecord(
            state=_STATES.get(message.state, SessionState.IDLE),
            lease_id=lease_id,
            engine_id=sys.intern(engine_id),
            turns=turns,
            turn_count=message.turn_count,
            hints=SessionHints(_seconds(message.keep_for), message.final_turn),
            wish=message.wish,
            token=message.token,
            ttl=_seconds(message.ttl),
            over_token=message.over_token,
            hidden_token=message.hidden_token,
            final_token=message.final_token,
            deleted=message.deleted,
            request_id=message.request_id,
            create_time=_moment(message.create_time),
            update_time=_moment(message.update_time),
        )


def packed_record(data: bytes) -> PackedRecord:
    """Bytes of a store as a record. Raises ValueError if they are none."""
    try:
        pb.SessionRecord.FromString(data)
    except DecodeError as error:
        raise ValueError(f"not a {pb.SessionRecord.DESCRIPTOR.full_name}: {error}") from error
    return PackedRecord(data)


def _live_turn(record: SessionRecord) -> int:
    for number, turn in enumerate(record.turns, start=1):
        if (turn.lease_id, turn.engine_id) == (record.lease_id, record.engine_id):
            return number
    return 0


def _turn_to_wire(turn: KnownTurn) -> pb.TurnRecord:
    return pb.TurnRecord(
        identity=turn.identity,
        token=turn.token,
        decision_id=turn.decision_id,
        lease_id=turn.lease_id,
        engine_id=turn.engine_id,
        tokens=turn.tokens,
        finish_time=_microseconds(turn.finish_time),
        end_reason=_REASONS_BACK.get(turn.end_reason, lease_pb2.END_REASON_UNSPECIFIED),
    )


def _turn_from_wire(message: pb.TurnRecord) -> KnownTurn:
    return KnownTurn(
        identity=message.identity,
        token=message.token,
        lease_id=message.lease_id,
        engine_id=message.engine_id,
        tokens=message.tokens,
        decision_id=message.decision_id,
        finish_time=_moment(message.finish_time),
        end_reason=_REASONS.get(message.end_reason, ""),
    )


def _microseconds(moment: dt.datetime | None) -> int:
    return 0 if moment is None else (moment - _EPOCH) // _MICROSECOND


def _seconds(seconds: float) -> float:
    return seconds if 0 <= seconds < _LONGEST else 0.0


def _moment(microseconds: int) -> dt.datetime | None:
    try:
        return None if microseconds == 0 else _EPOCH + microseconds * _MICROSECOND
    except OverflowError:
        return None  # Damaged: no reason to stop serving the others.
