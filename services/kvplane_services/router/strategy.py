"""Which strategy a turn gets, and what speaks against the others. Pure functions.

Today's rule is static: read the session's retention if there is one worth reading,
else recompute; decode alone only where it is forced or no prefill engine can help.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplane_services.engine.model import ConnectorKind, Engine, EngineState
from kvplane_services.errors import StrategyImpossible
from kvplane_services.lease.model import Lease
from kvplane_services.router.model import DecisionReason, Strategy, StrategyCandidate
from kvplane_services.router.view import EndedLease


@dataclass(frozen=True, slots=True)
class Objection:
    """What speaks against a strategy, as a reason for its alternative and in words."""

    reason: DecisionReason
    words: str


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the choice of a strategy depends on.

    Attributes:
        decode: The engine that decodes.
        prefill: The best prefill engine for `decode`; None if there is none.
        no_prefill: Why there is none, in words.
        lease: The session's live lease.
        ended: The session's last lease that ended, if none is live.
        holder: The engine of `lease`; None if the view does not know it.
        handle: How to read the retention of `lease`; None if it cannot be understood.
        holder_excluded: Whether the caller left the holder out.
        reader: The best prefill engine that can read from `holder` too.
        no_reader: Why there is none, in words.
        min_pull_tokens: Retentions with fewer tokens are not worth a transfer.
        history_digest: Of the turn, for retentions without proof; see router.proto.
        refused: Why the one read of a retention that a read consumes was not to be had, in words.

    """

    decode: Engine
    prefill: Engine | None
    no_prefill: str
    lease: Lease | None
    ended: EndedLease | None
    holder: Engine | None
    handle: Mapping[str, Any] | None
    holder_excluded: bool
    reader: Engine | None
    no_reader: str
    min_pull_tokens: int
    history_digest: bytes = b""
    refused: str = ""

    @property
    def decode_holds(self) -> bool:
        """Whether the engine that decodes holds the session's live lease."""
        return self.holder is not None and self.holder.name == self.decode.name


@dataclass(frozen=True, slots=True)
class Choice:
    """The strategy chosen, and why."""

    strategy: Strategy
    reason: DecisionReason
    details: str


def objections(situation: Situation) -> Mapping[Strategy, Objection | None]:
    """What makes each strategy impossible; None where nothing does."""
    return {
        Strategy.PULL: _against_pull(situation),
        Strategy.RECOMPUTE: _against_recompute(situation),
        # An engine that serves alone reads nothing of others, and its own cache compares tokens.
        Strategy.LOCAL: None,
    }


def choose(situation: Situation, forced: Strategy | None = None) -> Choice:
    """The strategy for a turn.

    Raises:
        StrategyImpossible: The forced strategy cannot be carried out.

    """
    against = objections(situation)
    if forced is not None:
        objection = against[forced]
        if objection is not None:
            raise StrategyImpossible(
                f"strategy {forced.value} is impossible for this turn: {objection.words}. "
                "Leave the choice to the router, or force another strategy.",
                strategy=forced.value,
            )
        return Choice(forced, DecisionReason.FORCED, f"strategy {forced.value} was forced")
    no_pull = against[Strategy.PULL]
    if no_pull is None:
        return Choice(Strategy.PULL, DecisionReason.LEASE_LIVE, _what_is_held(situation))
    no_recompute = against[Strategy.RECOMPUTE]
    if no_recompute is None:
        return Choice(Strategy.RECOMPUTE, no_pull.reason, no_pull.words)
    return Choice(
        Strategy.LOCAL,
        no_recompute.reason,
        f"{no_recompute.words}; {situation.decode.name} serves the turn alone",
    )


def candidates(situation: Situation, choice: Choice | None) -> tuple[StrategyCandidate, ...]:
    """Every strategy with what speaks against it: the chosen one, the possible, the rest."""
    against = objections(situation)

    def words(strategy: Strategy) -> str:
        objection = against[strategy]
        if choice is not None and strategy is choice.strategy:
            return ""
        return objection.words if objection is not None else _NOT_CHOSEN[strategy]

    def order(strategy: Strategy) -> tuple[bool, bool]:
        chosen = choice is not None and strategy is choice.strategy
        return not chosen, against[strategy] is not None

    return tuple(
        StrategyCandidate(strategy=strategy, rejection=words(strategy))
        for strategy in sorted(against, key=order)
    )


_NOT_CHOSEN = {
    Strategy.PULL: "chosen only if the router may choose",
    Strategy.RECOMPUTE: "the session's retention is worth reading",
    Strategy.LOCAL: "chosen only if forced, or if no prefill engine can take the turn",
}


def _against_pull(situation: Situation) -> Objection | None:
    lease, holder = situation.lease, situation.holder
    if lease is None:
        return _no_lease(situation)
    unreadable = _unreadable(situation, lease, holder)
    if unreadable is not None:
        return unreadable
    if lease.tokens < situation.min_pull_tokens:
        return Objection(
            DecisionReason.HISTORY_TOO_SHORT,
            f"{lease.name} holds {lease.tokens} tokens, fewer than the "
            f"{situation.min_pull_tokens} worth a transfer",
        )
    if situation.prefill is None:
        return Objection(DecisionReason.NO_PREFILL_ENGINE, situation.no_prefill)
    if situation.reader is None:
        return Objection(
            DecisionReason.HOLDER_UNAVAILABLE,
            f"no prefill engine can read from {lease.engine}: {situation.no_reader}",
        )
    return None


def _unreadable(situation: Situation, lease: Lease, holder: Engine | None) -> Objection | None:
    """Why the engine that holds the lease cannot be read."""
    words = ""
    if situation.holder_excluded:
        words = "is excluded by the caller"
    elif holder is None:
        words = "is not known to this router"
    elif holder.state is EngineState.LOST:
        words = "is lost"
    elif holder.epoch != lease.engine_epoch:
        words = "restarted since"
    if words:
        return Objection(
            DecisionReason.HOLDER_UNAVAILABLE, f"{lease.engine}, which holds {lease.name}, {words}"
        )
    if holder is not None and holder.build.connector is ConnectorKind.STOCK:
        doubt = _doubt(situation, lease, holder)
        if doubt:
            return Objection(
                DecisionReason.STOCK_CONNECTOR, f"{holder.name} runs the stock connector: {doubt}"
            )
    if situation.handle is None:
        return Objection(
            DecisionReason.HOLDER_UNAVAILABLE,
            f"the handle of {lease.name} is not a JSON object",
        )
    return None


def _against_recompute(situation: Situation) -> Objection | None:
    if situation.prefill is None:
        return Objection(DecisionReason.NO_PREFILL_ENGINE, situation.no_prefill)
    return None


def _no_lease(situation: Situation) -> Objection:
    ended, loss = situation.ended, _loss(situation.decode)
    if ended is None:
        return Objection(DecisionReason.NO_LEASE, f"the session has no retention{loss}")
    return Objection(
        DecisionReason.LEASE_ENDED, f"{ended.lease}, the session's last lease, {ended.how}{loss}"
    )


def _doubt(situation: Situation, lease: Lease, holder: Engine) -> str:
    """Why a retention that has no proof must not be read; empty if it may be."""
    fixed = holder.fixed_retention
    if fixed is None or not fixed.trust_history:
        return "it cannot prove that a prompt extends what was retained"
    if not lease.history_digest:
        return "what was retained cannot be compared with messages"
    if lease.history_digest != situation.history_digest:
        return "the turn is not known to continue the messages of the one retained"
    return situation.refused


def _loss(engine: Engine) -> str:
    """What is lost, where an engine with the stock connector may be why there is no lease."""
    if engine.build.connector is not ConnectorKind.STOCK:
        return ""
    if engine.fixed_retention is None:
        return f"; {engine.name} runs the stock connector, and is not known to keep turns"
    return (
        f"; {engine.name} runs the stock connector: it tells what it keeps in answers that do not "
        f"stream only, for {engine.fixed_retention.ttl:g} s or one read"
    )


def _what_is_held(situation: Situation) -> str:
    lease = situation.lease
    if lease is None:
        return ""
    return f"{lease.engine} holds {lease.tokens} tokens of the session under {lease.name}"
