"""How sessions are written down."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.adapters.records import SESSIONS
from kvplane_services.adapters.session_records import SessionCodec
from kvplane_services.lease.model import EndReason
from kvplane_services.records.v1 import session_pb2
from kvplane_services.session.model import SessionHints, SessionState
from kvplane_services.session.record import KnownTurn, SessionRecord

_IDS = st.text(st.characters(codec="utf-8"), max_size=12)
_TOKENS = st.integers(0, 2**62)
_TIMES = st.none() | st.datetimes(
    dt.datetime(2020, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    dt.datetime(2100, 1, 1),  # noqa: DTZ001 - see above
    timezones=st.just(dt.UTC),
)
_TURNS = st.builds(
    KnownTurn,
    identity=st.binary(min_size=8, max_size=8),
    token=_TOKENS,
    lease_id=_IDS,
    engine_id=_IDS,
    tokens=_TOKENS,
    decision_id=_IDS,
    finish_time=_TIMES,
    end_reason=st.sampled_from(["", *EndReason.__members__]),
)
_RECORDS = st.builds(
    SessionRecord,
    state=st.sampled_from(SessionState),
    lease_id=_IDS,
    engine_id=_IDS,
    turns=st.lists(_TURNS, max_size=4).map(tuple),
    turn_count=_TOKENS,
    hints=st.builds(SessionHints, keep_for=st.floats(0, 1e6), final_turn=st.booleans()),
    wish=_TOKENS,
    token=_TOKENS,
    ttl=st.floats(0, 1e6),
    over_token=_TOKENS,
    hidden_token=_TOKENS,
    final_token=_TOKENS,
    deleted=st.booleans(),
    request_id=_IDS,
    create_time=_TIMES,
    update_time=_TIMES,
)


@given(record=_RECORDS, live=st.integers(0, 3))
def test_records_come_back_as_they_were(record: SessionRecord, live: int) -> None:
    """Whatever a session is like, and whether or not a turn has its lease."""
    if live < len(record.turns):
        turn = record.turns[live]
        record = record._replace(lease_id=turn.lease_id, engine_id=turn.engine_id)
    codec = SessionCodec()
    packed = codec.pack(record)

    assert codec.unpack(packed) == record
    assert SESSIONS.decode(SESSIONS.encode(packed)) == packed


def test_a_record_is_short() -> None:
    """A million of them have to fit: this is one of a session with one live turn."""
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    turn = KnownTurn(b"i" * 8, 1_767_225_600_000_000, "l" * 24, "decode-0", 12_000, "d" * 32, now)
    record = SessionRecord(
        state=SessionState.RETAINED,
        lease_id=turn.lease_id,
        engine_id=turn.engine_id,
        turns=(turn,),
        turn_count=1,
        token=turn.token,
        ttl=3600.0,
        create_time=now,
        update_time=now,
    )

    assert len(SessionCodec().pack(record)) < 160


def test_what_is_no_record_is_refused() -> None:
    """A store that holds something else says so where it is read."""
    with pytest.raises(ValueError, match=r"not a kvplane_services\.records\.v1\.SessionRecord"):
        SESSIONS.decode(b"\xff\xff\xff")


def test_times_that_nobody_can_have_written_are_left_out() -> None:
    """A damaged record takes no process down that follows all of them."""
    message = session_pb2.SessionRecord(create_time=2**62, update_time=-(2**62), turn_count=3)
    message.turns.add(finish_time=2**63 - 1)
    packed = SESSIONS.decode(message.SerializeToString())

    record = SessionCodec().unpack(packed)

    assert (record.create_time, record.update_time, record.turn_count) == (None, None, 3)
    assert record.turns[0].finish_time is None


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0, 1e300])
def test_durations_that_nobody_can_have_written_are_none(seconds: float) -> None:
    """Nobody could wait for so long."""
    message = session_pb2.SessionRecord(ttl=seconds, keep_for=seconds)

    record = SessionCodec().unpack(SESSIONS.decode(message.SerializeToString()))

    assert (record.ttl, record.hints.keep_for) == (0.0, 0.0)
