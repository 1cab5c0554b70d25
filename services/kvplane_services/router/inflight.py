"""Turns in flight, counted per engine and leg. Pure: takes `now`."""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from kvplane_services.errors import Saturated
from kvplane_services.router.model import Decision, LegKind
from kvplane_services.session.model import SessionKey

_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class Turn:
    """What is remembered of a decision while its turn is in flight.

    `lease` and `decode_engine` are full resource names; `open_legs` has the engine of each
    leg that was not released.
    """

    decision_id: str
    session_key: SessionKey
    lease: str
    decode_engine: str
    deadline: float
    open_legs: dict[LegKind, str]


class InFlight:
    """Counts a decision's legs from its making until each is released, exactly once.

    A turn that nobody reports is dropped after its decision's TTL. That TTL outlives any
    stream: a gateway that died is worth less care than an engine that is overcommitted.
    """

    def __init__(self, *, limit: int, retry_after: float) -> None:
        self._limit = limit
        self._retry_after = retry_after
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._counts: Counter[tuple[str, LegKind]] = Counter()
        self._sessions: Counter[SessionKey] = Counter()

    def __len__(self) -> int:
        return len(self._turns)

    def count(self, engine: str, leg: LegKind) -> int:
        """Turns in flight on an engine's leg."""
        return self._counts.get((engine, leg), 0)

    def serves(self, key: SessionKey) -> bool:
        """Whether a turn of the session is in flight."""
        return key in self._sessions

    def admit(self) -> None:
        """Makes sure that one more turn can be counted.

        Raises:
            Saturated: Too many turns are in flight.

        """
        if len(self._turns) >= self._limit:
            raise Saturated(
                f"{self._limit} turns are in flight, which is this router's limit; retry later",
                retry_after=self._retry_after,
            )

    def acquire(self, decision: Decision, now: float) -> None:
        """Counts a decision's legs."""
        legs = {LegKind.DECODE: decision.decode.engine}
        if decision.prefill is not None:
            legs[LegKind.PREFILL] = decision.prefill.engine
        self._turns[decision.decision_id] = Turn(
            decision_id=decision.decision_id,
            session_key=decision.session_key,
            lease=decision.lease,
            decode_engine=decision.decode.engine,
            deadline=now + decision.ttl,
            open_legs=legs,
        )
        for leg, engine in legs.items():
            self._counts[engine, leg] += 1
        self._sessions[decision.session_key] += 1

    def release(self, decision_id: str, leg: LegKind) -> Turn | None:
        """Releases a leg, and with the decode leg the prefill leg too.

        Returns:
            The turn if this is the first release of the leg, else None.

        """
        turn = self._turns.get(decision_id)
        if turn is None or leg not in turn.open_legs:
            return None
        legs = tuple(turn.open_legs) if leg is LegKind.DECODE else (leg,)
        for one in legs:
            _decrement(self._counts, (turn.open_legs.pop(one), one))
        if not turn.open_legs:
            del self._turns[decision_id]
            _decrement(self._sessions, turn.session_key)
        return turn

    def sweep(self, now: float) -> list[Turn]:
        """Drops turns whose TTL has passed, and returns them."""
        dropped: list[Turn] = []
        while self._turns:
            turn = next(iter(self._turns.values()))
            if turn.deadline > now:
                break
            dropped.append(turn)
            self.release(turn.decision_id, LegKind.DECODE)
        return dropped


def _decrement(counts: Counter[_K], key: _K) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
