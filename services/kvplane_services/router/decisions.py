"""Puts a decision together from what was chosen. Pure."""

from kvplane_services.router.legs import decode_leg, prefill_leg, pull_leg
from kvplane_services.router.model import Decision, Leg, Strategy, Subject
from kvplane_services.router.recognition import Recognised
from kvplane_services.router.strategy import Choice, Situation
from kvplane_services.session.model import SessionKey


def validate(subject: Subject) -> None:
    """Checks what a subject must have.

    Raises:
        InvalidRequest: Something is missing or too long.

    """
    key = subject.session_key
    if not key.session_id:
        key = SessionKey(key.tenant, key.model, key.adapter, "unnamed")
    key.validate()


def make_decision(
    subject: Subject,
    session: Recognised,
    situation: Situation,
    choice: Choice,
    *,
    decision_id: str,
    ttl: float,
    waited: float = 0.0,
) -> Decision:
    """The decision that carries a choice out."""
    lease = situation.lease
    if choice.strategy is Strategy.RECOMPUTE or (
        choice.strategy is Strategy.LOCAL and not situation.decode_holds
    ):
        lease = None
    decode = decode_leg(
        situation.decode,
        session_key=session.key,
        decision_id=decision_id,
        message_digest=message_digest(subject),
        alone=choice.strategy is Strategy.LOCAL,
    )
    return Decision(
        decision_id=decision_id,
        strategy=choice.strategy,
        reason=choice.reason,
        details=choice.details,
        prefill=_prefill(situation, choice),
        decode=decode,
        session_key=session.key,
        lease=lease.name if lease is not None else "",
        fencing_token=lease.fencing_token if lease is not None else 0,
        held_tokens=lease.tokens if lease is not None else 0,
        ttl=ttl,
        waited=waited,
    )


def message_digest(subject: Subject) -> bytes:
    """The digest of the messages that a turn was asked with; nothing if they were not digested."""
    return subject.message_digests[-1] if subject.message_digests else b""


def _prefill(situation: Situation, choice: Choice) -> Leg | None:
    reader, handle = situation.reader, situation.handle
    if choice.strategy is Strategy.PULL and reader is not None and handle is not None:
        return pull_leg(reader, handle)
    if choice.strategy is Strategy.RECOMPUTE and situation.prefill is not None:
        return prefill_leg(situation.prefill)
    return None
