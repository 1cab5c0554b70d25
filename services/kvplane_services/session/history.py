"""What a lease's life means for its session. Pure."""

import hashlib
from dataclasses import replace

from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.session.model import Session, SessionHints, SessionState, Turn


def with_turn(session: Session, lease: Lease, *, max_turns: int) -> Session:
    """The session with the turn that left what `lease` is on, added or brought up to date."""
    turn = Turn(
        decision_id=lease.decision_id,
        lease=lease.name,
        engine=lease.engine,
        tokens=lease.tokens,
        finish_time=lease.create_time,
        end_reason=_end_reason(lease),
    )
    known = [index for index, old in enumerate(session.turns) if old.lease == lease.name]
    if known:
        turns = list(session.turns)
        turns[known[0]] = turn
        return replace(session, turns=tuple(turns))
    return replace(
        session,
        turns=(*session.turns, turn)[-max_turns:],
        turn_count=session.turn_count + 1,
    )


def knows_turn(session: Session, lease: Lease) -> bool:
    """Whether the turn that left what `lease` is on is in the session's history."""
    return any(turn.lease == lease.name for turn in session.turns)


def with_end(session: Session, lease: Lease) -> Session:
    """The session with the turn of an ended lease marked; others are left as they are."""
    return replace(
        session,
        turns=tuple(
            replace(turn, end_reason=_end_reason(lease)) if turn.lease == lease.name else turn
            for turn in session.turns
        ),
    )


def retained(session: Session, lease: Lease) -> Session:
    """The session with a live lease."""
    return replace(session, state=SessionState.RETAINED, lease=lease.name, engine=lease.engine)


def without_lease(session: Session) -> Session:
    """The session with no live lease."""
    ended = session.state is SessionState.ENDED
    state = SessionState.ENDED if ended else SessionState.IDLE
    return replace(session, state=state, lease="", engine="")


def ended(session: Session) -> Session:
    """The session as ended: without a lease, and without hints for another turn."""
    return without_lease(replace(session, state=SessionState.ENDED, hints=SessionHints()))


def etag_of(session: Session) -> str:
    """A digest of all that a reader sees of a session, times left out."""
    seen = (
        session.key,
        session.state,
        session.lease,
        session.turns,
        session.turn_count,
        session.hints,
    )
    return hashlib.blake2b(repr(seen).encode(), digest_size=12).hexdigest()


def _end_reason(lease: Lease) -> str:
    if lease.state is LeaseState.ENDED and lease.end_reason is not None:
        return lease.end_reason.name
    return ""
