"""Watches which conversations come back, and after how long, also those whose lease has ended.

What becomes of a conversation whose blocks were given up says as much as what becomes of one that
was kept; without it only those would count that the policy had thought well of.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from kvplane_services.lease.due_times import DueTimes
from kvplane_services.lease.return_kinds import Hint, Kind, first_kind
from kvplane_services.lease.return_rates import AGES, LAST_AGE, ReturnRates, age_of

K = TypeVar("K", bound=Hashable)

# Width of the slots that ages' ends are filed in, in seconds.
_SLOT = 2.0
# How long a turn may take; one that leaves nothing is forgotten after that.
_LONGEST_TURN = 1800.0


class _Away(Generic[K]):
    """A conversation between two turns, or within one."""

    __slots__ = ("age", "back_after", "due", "key", "kind", "since", "tokens")

    def __init__(self, key: K, kind: Kind, tokens: int, since: float) -> None:
        self.key = key
        self.tokens = tokens
        self.kind = kind
        self.since = since
        self.age = 0
        self.due: float | None = since + AGES[1]
        # How long it was away; None while it is.
        self.back_after: float | None = None


class Comebacks(Generic[K]):
    """Conversations that may come back. What is learnt of them goes into the rates.

    Args:
        rates: Where it is counted.
        limit: Conversations watched at once. Where there are more, those that are watched stand
            for the others.

    """

    def __init__(self, *, rates: ReturnRates, limit: int) -> None:
        self._rates = rates
        self._limit = limit
        self._away: dict[K, _Away[K]] = {}
        self._ages: DueTimes[_Away[K]] = DueTimes(width=_SLOT, due=lambda away: away.due)

    def __len__(self) -> int:
        """How many are watched."""
        return len(self._away)

    def end_turn(self, key: K, tokens: int, now: float) -> Kind:
        """Watches a conversation from the end of its turn on, and returns its kind."""
        self.begin_turn(key, now)
        known = self._away.pop(key, None)
        if known is None:
            kind = first_kind(tokens)
        else:
            kind = known.kind.next(pause=known.back_after, growth=tokens - known.tokens)
            known.due = None
        if len(self._away) < self._limit:
            away = self._away[key] = _Away(key, kind, tokens, now)
            self._ages.add(away)
        return kind

    def kind(self, key: K, tokens: int) -> Kind:
        """The kind of a conversation; of one that is not watched, as after a first turn."""
        away = self._away.get(key)
        return away.kind if away is not None else first_kind(tokens)

    def begin_turn(self, key: K, now: float) -> None:
        """Notes that a conversation is back. Does nothing if it was noted before."""
        away = self._away.get(key)
        if away is None or away.back_after is not None:
            return
        away.back_after = idle = now - away.since
        self._grow(away, idle)
        self._rates.come_back(away.kind, age_of(idle))
        # It is filed for the end of its age, and comes up then; a turn takes longer.
        away.due = now + _LONGEST_TURN

    def hint(self, key: K, hint: Hint) -> None:
        """Notes what a client said of a conversation that is away."""
        away = self._away.get(key)
        if away is not None and away.back_after is None:
            away.kind = away.kind.hinted(hint)

    def sweep(self, now: float) -> None:
        """Counts the ages that are over, and forgets who was away for all of them."""
        again: list[_Away[K]] = []
        for away in self._ages.pop_due(now):
            if away.back_after is None:
                self._grow(away, now - away.since)
            if away.back_after is not None or away.age >= LAST_AGE:
                away.due = None
                self._away.pop(away.key, None)
            else:
                again.append(away)
        for away in again:
            self._ages.add(away)

    def _grow(self, away: _Away[K], idle: float) -> None:
        while away.age < LAST_AGE and AGES[away.age + 1] <= idle:
            self._rates.outlast(away.kind, away.age)
            away.age += 1
        if away.age < LAST_AGE:
            away.due = away.since + AGES[away.age + 1]
