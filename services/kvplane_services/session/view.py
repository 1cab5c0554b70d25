"""A session as its readers see it. Pure."""

import datetime as dt
import hashlib
from dataclasses import replace

from kvplane_services.session.model import Session, SessionKey, Turn
from kvplane_services.session.record import KnownTurn, SessionRecord


def shown(name: str, record: SessionRecord, *, expire_time: dt.datetime) -> Session:
    """The session of a record, with the etag that guards a write.

    Args:
        name: Full name of the session.
        record: What is known of it.
        expire_time: When it is forgotten unless it is used.

    """
    session = Session(
        key=SessionKey.parse(name),
        state=record.state,
        lease=f"leases/{record.lease_id}" if record.lease_id else "",
        engine=f"engines/{record.engine_id}" if record.engine_id else "",
        turns=tuple(_turn(turn) for turn in record.turns if turn.token > record.hidden_token),
        turn_count=record.turn_count,
        hints=record.hints,
        create_time=record.create_time,
        update_time=record.update_time,
        expire_time=expire_time,
    )
    return replace(session, etag=_etag(session))


def _turn(turn: KnownTurn) -> Turn:
    return Turn(
        decision_id=turn.decision_id,
        lease=f"leases/{turn.lease_id}",
        engine=f"engines/{turn.engine_id}",
        tokens=turn.tokens,
        finish_time=turn.finish_time,
        end_reason=turn.end_reason,
    )


def _etag(session: Session) -> str:
    """A digest of all that a reader sees, times left out."""
    seen = (
        session.key,
        session.state,
        session.lease,
        session.turns,
        session.turn_count,
        session.hints,
    )
    return hashlib.blake2b(repr(seen).encode(), digest_size=12).hexdigest()
