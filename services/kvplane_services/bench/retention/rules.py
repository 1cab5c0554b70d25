"""What the simulated engines keep: kvplane's own policy, and others to hold it against."""

from kvplane_services.bench.retention.engine import Held
from kvplane_services.lease.comebacks import Comebacks
from kvplane_services.lease.return_kinds import Hint
from kvplane_services.lease.return_rates import ReturnRates
from kvplane_services.lease.worth import RecomputeCost, worth_per_block

# What is given to know after a turn: hint by the turn's number.
Hints = dict[int, Hint]
# Conversations that kvplane watches at once; see `LeaseConfig.max_watched`.
_WATCHED = 32_768


class Rule:
    """Ranks what is held: what ranks lowest is given up first. This one keeps nothing."""

    # Whether anything is kept at all, and for how long it then cannot be given up, in seconds.
    keeps = False
    unbreakable = 0.0

    def back(self, held: Held, now: float, /) -> None:
        """A turn begins that finds what is held."""

    def end(self, held: Held, now: float, /) -> None:
        """A turn ends and leaves something."""

    def rank(self, held: Held, _now: float, /) -> float:
        """How much worth keeping it is, against others: here, the latest most."""
        return held.since

    def gone(self, held: Held, /) -> None:
        """It was given up under pressure."""

    def tick(self, now: float, /) -> None:
        """Some time has passed."""


class FixedTime(Rule):
    """vLLM's own rule: everything stays for the same time, whoever waits."""

    keeps = True

    def __init__(self, seconds: float) -> None:
        self.unbreakable = seconds


class LeastRecent(Rule):
    """The longest idle goes first, apart from what clients said."""

    keeps = True

    def __init__(self, hints: Hints) -> None:
        self._hints = hints

    def rank(self, held: Held, _now: float, /) -> float:
        """By time, within hints."""
        hint = self._hints.get(held.turn.number, Hint.NONE)
        return held.since + {Hint.FINAL: -1e9, Hint.NONE: 0.0, Hint.STAY: 1e9}[hint]


class GreedyDual(Rule):
    """GDSF: turns times cost by size, on top of the rank of what was given up last."""

    keeps = True

    def __init__(self, cost: RecomputeCost) -> None:
        self._cost = cost
        self._floor = 0.0
        self._turns: dict[int, int] = {}

    def end(self, held: Held, _now: float, /) -> None:
        """Ranks it once."""
        turns = self._turns[held.turn.conversation] = self._turns.get(held.turn.conversation, 0) + 1
        held.rank = self._floor + turns * self._cost.of(held.tokens) / held.tokens

    def rank(self, held: Held, _now: float, /) -> float:
        """As it was when the turn ended."""
        return held.rank

    def gone(self, held: Held, /) -> None:
        """Raises what others must reach."""
        self._floor = max(self._floor, held.rank)


class ByWorth(Rule):
    """kvplane's own: the classes that the lease manager uses."""

    keeps = True

    def __init__(self, cost: RecomputeCost, hints: Hints, *, refresh: float = 10.0) -> None:
        self._cost = cost
        self._hints = hints
        self._rates = ReturnRates()
        self._comebacks: Comebacks[int] = Comebacks(rates=self._rates, limit=_WATCHED)
        self._refresh = refresh
        self._refreshed = 0.0

    def back(self, held: Held, now: float, /) -> None:
        """As when a turn claims its lease; of others the plane hears when they end."""
        self._comebacks.begin_turn(held.turn.conversation, now)

    def end(self, held: Held, now: float, /) -> None:
        """As when a lease is granted."""
        kind = self._comebacks.end_turn(held.turn.conversation, held.turn.tokens, now)
        hint = self._hints.get(held.turn.number, Hint.NONE)
        if hint is not Hint.NONE:
            self._comebacks.hint(held.turn.conversation, hint)
            kind = kind.hinted(hint)
        held.kind = kind

    def rank(self, held: Held, now: float, /) -> float:
        """As what is sent along with renewals."""
        per_second = self._rates.per_second(held.kind, now - held.since)
        return worth_per_block(per_second, self._cost.of(held.tokens), held.tokens)

    def tick(self, now: float, /) -> None:
        """As the lease manager's sweep."""
        self._comebacks.sweep(now)
        if now - self._refreshed >= self._refresh:
            self._rates.refresh(now)
            self._refreshed = now
