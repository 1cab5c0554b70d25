"""What a store holds of a session. Pure data; see records/v1/session.proto for each field."""

import datetime as dt
from typing import NamedTuple, NewType, Protocol

from kvplane_services.session.model import SessionHints, SessionState

NO_HINTS = SessionHints()


# A record as it is written down. Of a million sessions few are looked at in the same moment; the
# others are held like this, once for the store's copy and the registry together.
PackedRecord = NewType("PackedRecord", bytes)


# Both are tuples because each turn changes some of them several times, and a field of a tuple is
# replaced in a tenth of the time that it takes in a dataclass.


class KnownTurn(NamedTuple):
    """A turn, and what tells it from others: see `history.identity_of`."""

    identity: bytes
    token: int
    lease_id: str
    engine_id: str
    tokens: int
    decision_id: str = ""
    finish_time: dt.datetime | None = None
    end_reason: str = ""


class SessionRecord(NamedTuple):
    """A session with all that replicas must know of it.

    `ttl` is the granted idle time in seconds; `over_token` is set when the session is ended or
    deleted, `hidden_token` when it is deleted, `final_token` when a turn comes that was said to be
    the last: they are fencing tokens, 0 for never.
    """

    state: SessionState = SessionState.IDLE
    lease_id: str = ""
    engine_id: str = ""
    turns: tuple[KnownTurn, ...] = ()
    turn_count: int = 0
    hints: SessionHints = NO_HINTS
    wish: int = 0
    token: int = 0
    ttl: float = 0.0
    over_token: int = 0
    hidden_token: int = 0
    final_token: int = 0
    deleted: bool = False
    request_id: str = ""
    create_time: dt.datetime | None = None
    update_time: dt.datetime | None = None


class RecordCodec(Protocol):
    """Writes records down and reads them."""

    def pack(self, record: SessionRecord) -> PackedRecord:
        """The same bytes for the same record."""
        ...

    def unpack(self, packed: PackedRecord) -> SessionRecord:
        """The record."""
        ...
