"""What leases make of a session's record. Pure.

A turn is one whatever leases follow on what it left: an engine that registers anew gets new
leases on its old retentions. A session that was ended or deleted stays so until a turn comes that
it was not ended over.
"""

import hashlib
from dataclasses import dataclass

from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.session.model import SessionHints, SessionState
from kvplane_services.session.record import KnownTurn, SessionRecord


@dataclass(frozen=True, slots=True)
class Missed:
    """A lease that vanished without an end, and did not come back."""

    lease_id: str


News = Lease | Missed


@dataclass(frozen=True, slots=True)
class Taken:
    """What news make of a record.

    Attributes:
        record: The record; the very same one if the news change nothing.
        new_turn: Whether a turn was learnt of, and it is the session's latest.
        over: Whether the lease is live though its turn is one that the session was ended over:
            it is to be released.
        final: Whether the lease is live and on what a turn left that was said to be the last.

    """

    record: SessionRecord
    new_turn: bool = False
    over: bool = False
    final: bool = False


def identity_of(lease: Lease) -> bytes:
    """What tells the turn that left what `lease` is on from all others of its session."""
    # The lengths tell where one part ends.
    parts = (
        f"{len(lease.engine_id)}:{len(lease.retention_id)}:"
        f"{lease.engine_id}{lease.retention_id}{lease.decision_id}"
    )
    return hashlib.blake2b(parts.encode(), digest_size=8).digest()


def take(record: SessionRecord, news: News, *, max_turns: int, ttl: float) -> Taken:
    """Takes news of one of the session's leases in. Taking them twice is taking them once.

    Args:
        record: The session so far; `SessionRecord()` for one that was never seen.
        news: What became of a lease.
        max_turns: Turns to be remembered.
        ttl: Idle time of a session that a turn creates, in seconds.

    """
    if isinstance(news, Missed):
        return Taken(_without_lease(record, news.lease_id))
    identity = identity_of(news)
    found = (
        turn for turn in record.turns if turn.identity == identity or turn.lease_id == news.lease_id
    )
    known = next(found, None)
    if _is_over(record, news, known):
        if known is None and news.fencing_token > record.hidden_token:
            return Taken(_with_turn(record, news, identity, max_turns), over=_is_live(news))
        return Taken(_with_end(record, news, known), over=_is_live(news))
    if known is None:
        if _is_forgotten(record, news, max_turns):
            return Taken(record)
        record = _with_turn(_opened(record, ttl=ttl), news, identity, max_turns)
    elif _is_stale(known, news):
        return Taken(record)
    else:
        record = _with_news(record, known, news)
        if known.token == record.final_token:
            record = record._replace(final_token=news.fencing_token)
    return _with_lease(record, news, new=known is None)


def ended(record: SessionRecord) -> SessionRecord:
    """The session as ended over all its turns so far, and without hints for another one."""
    return record._replace(
        state=SessionState.ENDED,
        lease_id="",
        engine_id="",
        hints=SessionHints(),
        over_token=max(record.over_token, record.token),
    )


def deleted(record: SessionRecord, *, remember: float) -> SessionRecord:
    """What is left of a deleted session, for `remember` seconds: enough to know its turns by."""
    over = ended(record)
    return over._replace(
        deleted=True, hidden_token=over.over_token, turn_count=0, ttl=remember, request_id=""
    )


def reborn(record: SessionRecord, *, ttl: float) -> SessionRecord:
    """A session that begins under the key of one that was deleted, or never was."""
    return SessionRecord(
        turns=record.turns,
        wish=record.wish,
        token=record.token,
        ttl=ttl,
        over_token=record.over_token,
        hidden_token=record.hidden_token,
    )


def joined(saved: SessionRecord, mine: SessionRecord, *, max_turns: int) -> SessionRecord:
    """What is known of a session whose record the store lost, and somebody wrote anew.

    Args:
        saved: What the store has: put back by somebody who knew more or less than `mine`, or a
            session that was begun anew by somebody who knew nothing.
        mine: What was known before the store lost it.
        max_turns: Turns to be remembered.

    """
    if saved.hidden_token > mine.hidden_token:
        return saved
    theirs = {turn.identity: turn for turn in saved.turns}
    added = [turn for turn in saved.turns if turn.identity not in _identities(mine)]
    count = max(saved.turn_count, mine.turn_count + len(added))
    if not _is_newer(mine, saved):
        missing = [turn for turn in mine.turns if turn.identity not in theirs]
        turns = _merged(saved.turns, missing, max_turns)
        if turns == saved.turns and count == saved.turn_count:
            return saved
        return saved._replace(turns=turns, turn_count=count)
    over = mine.over_token
    if opens := any(turn.token > over for turn in added):
        mine = _opened(mine, ttl=saved.ttl)
        count = max(saved.turn_count, mine.turn_count + len(added))
    renewed = {
        turn.identity: theirs[turn.identity]
        for turn in mine.turns
        if turn.token > over and turn.identity in theirs
    }
    known = tuple(renewed.get(turn.identity, turn) for turn in mine.turns)
    record = mine._replace(
        turns=_merged(known, added, max_turns),
        turn_count=count,
        token=max(saved.token, mine.token),
        create_time=mine.create_time or saved.create_time,
    )
    live = {turn.lease_id for turn in (*added, *renewed.values())}
    if saved.lease_id in live and (opens or mine.state is not SessionState.ENDED):
        return record._replace(
            state=SessionState.RETAINED, lease_id=saved.lease_id, engine_id=saved.engine_id
        )
    return record


# -- Steps -----------------------------------------------------------------------------------


def _is_newer(mine: SessionRecord, saved: SessionRecord) -> bool:
    """Whether `mine` has what clients wished later, or has wishes at all."""
    said, heard = (mine.over_token, mine.wish), (saved.over_token, saved.wish)
    # A session that was begun anew has another time of creation.
    return said > heard if said != heard else mine.create_time != saved.create_time


def _identities(record: SessionRecord) -> set[bytes]:
    return {turn.identity for turn in record.turns}


def _merged(
    turns: tuple[KnownTurn, ...], more: list[KnownTurn], max_turns: int
) -> tuple[KnownTurn, ...]:
    merged = list(turns)
    for turn in more:
        _insert(merged, turn)
    return tuple(merged[-max_turns:])


def _is_live(lease: Lease) -> bool:
    return lease.state is LeaseState.ACTIVE


def _is_over(record: SessionRecord, lease: Lease, known: KnownTurn | None) -> bool:
    first = lease.fencing_token if known is None else min(lease.fencing_token, known.token)
    return 0 < first <= record.over_token


def _is_forgotten(record: SessionRecord, lease: Lease, max_turns: int) -> bool:
    """Whether the turn was, or would be, cut from the history by later ones."""
    full = len(record.turns) >= max_turns
    return full and lease.fencing_token < min(turn.token for turn in record.turns)


def _is_stale(known: KnownTurn, lease: Lease) -> bool:
    """Whether more is known of the turn's retention than the news tell."""
    if lease.lease_id != known.lease_id:
        return lease.fencing_token < known.token
    return bool(known.end_reason) and lease.state is not LeaseState.ENDED


def _opened(record: SessionRecord, *, ttl: float) -> SessionRecord:
    if record.deleted or not record.ttl:
        return reborn(record, ttl=ttl)
    if record.state is SessionState.ENDED:
        return record._replace(state=SessionState.IDLE)
    return record


def _with_turn(
    record: SessionRecord, lease: Lease, identity: bytes, max_turns: int
) -> SessionRecord:
    turn = KnownTurn(
        identity=identity,
        token=lease.fencing_token,
        lease_id=lease.lease_id,
        engine_id=lease.engine_id,
        tokens=lease.tokens,
        decision_id=lease.decision_id,
        finish_time=lease.create_time,
        end_reason=_end_reason(lease),
    )
    turns = _merged(record.turns, [turn], max_turns)
    return record._replace(turns=turns, turn_count=record.turn_count + 1)


def _insert(turns: list[KnownTurn], turn: KnownTurn) -> None:
    """Puts a turn behind the last one that was granted before it."""
    place = len(turns)
    while place and turns[place - 1].token > turn.token:
        place -= 1
    turns.insert(place, turn)


def _with_end(record: SessionRecord, lease: Lease, known: KnownTurn | None) -> SessionRecord:
    ended_now = lease.state is LeaseState.ENDED
    if known is None or known.lease_id != lease.lease_id or not ended_now:
        return record
    return _with_news(record, known, lease)


def _with_news(record: SessionRecord, known: KnownTurn, lease: Lease) -> SessionRecord:
    turn = known._replace(
        token=lease.fencing_token,
        lease_id=lease.lease_id,
        tokens=lease.tokens,
        end_reason=_end_reason(lease),
    )
    if turn == known:
        return record
    turns = tuple(turn if each is known else each for each in record.turns)
    return record._replace(turns=turns)


def _with_lease(record: SessionRecord, lease: Lease, *, new: bool) -> Taken:
    latest = lease.fencing_token >= record.token
    token = max(record.token, lease.fencing_token)
    if not _is_live(lease):
        if token != record.token:
            record = record._replace(token=token)
        record = _without_lease(record, lease.lease_id)
    elif latest:
        record = _with_live(record, lease)
    if new and latest and record.hints.final_turn:
        # The client said beforehand that this turn is the last; of the next one it said nothing.
        record = record._replace(hints=SessionHints(), final_token=lease.fencing_token)
    final = _is_live(lease) and lease.fencing_token == record.final_token
    return Taken(record, new_turn=new and latest, final=final)


def _with_live(record: SessionRecord, lease: Lease) -> SessionRecord:
    if (record.lease_id, record.token) == (lease.lease_id, lease.fencing_token):
        return record
    return record._replace(
        state=SessionState.RETAINED,
        lease_id=lease.lease_id,
        engine_id=lease.engine_id,
        token=lease.fencing_token,
    )


def _without_lease(record: SessionRecord, lease_id: str) -> SessionRecord:
    if not record.lease_id or record.lease_id != lease_id:
        return record
    return record._replace(state=SessionState.IDLE, lease_id="", engine_id="")


def _end_reason(lease: Lease) -> str:
    if lease.state is LeaseState.ENDED and lease.end_reason is not None:
        return lease.end_reason.name
    return ""
