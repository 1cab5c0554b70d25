"""How soon conversations come back, learnt from those that did and did not. Pure.

Time since a turn's end is cut into ages. Of each group of conversations it is counted how many
were away when an age began, and how many came back within it. What was counted of a group is
weighed against what is known of the wider one around it, and of the widest against a prior, so
that a kind that was seen seldom is judged like its kin.
"""

import itertools
from bisect import bisect_right

from kvplane_services.lease.return_kinds import Hint, Kind

# Seconds since the end of a turn at which ages begin. After the last one nothing is foretold.
AGES = (
    *(0.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 75.0, 90.0, 110.0, 130.0, 160.0),
    *(200.0, 250.0, 300.0, 370.0, 450.0, 550.0, 700.0, 900.0, 1200.0, 1600.0),
)
LAST_AGE = len(AGES) - 1
_WIDTHS = (*(end - begin for begin, end in itertools.pairwise(AGES)), 600.0)
# The weight of what is known of the wider group, in conversations.
_KIN = 12.0
# The prior: the chance to come back within t seconds is 1 - (1 + t / _SCALE) ** -shape.
_SCALE = 60.0
_SHAPES = {Hint.NONE: 0.4, Hint.STAY: 2.0, Hint.FINAL: 0.02}


def age_of(idle: float) -> int:
    """The age that a conversation is in which ended its last turn so many seconds ago."""
    return bisect_right(AGES, idle, 1) - 1


class ReturnRates:
    """Counts, and what they foretell.

    Args:
        half_life: Seconds in which what was counted loses half of its weight.

    """

    def __init__(self, *, half_life: float = 21_600.0) -> None:
        self._half_life = half_life
        # Away at the beginning of each age, and back within it.
        self._away: dict[tuple[object, ...], list[float]] = {}
        self._back: dict[tuple[object, ...], list[float]] = {}
        self._worths: dict[Kind, tuple[float, ...]] = {}
        self._aged_at: float | None = None

    def outlast(self, kind: Kind, age: int) -> None:
        """Counts a conversation that was away for all of an age."""
        for group in kind.kin:
            self._counts(self._away, group)[age] += 1.0

    def come_back(self, kind: Kind, age: int) -> None:
        """Counts a conversation that came back within an age."""
        self.outlast(kind, age)
        for group in kind.kin:
            self._counts(self._back, group)[age] += 1.0

    def refresh(self, now: float) -> None:
        """Takes what was counted since into account. Not for every conversation: it costs."""
        if self._aged_at is not None:
            left = 0.5 ** ((now - self._aged_at) / self._half_life)
            for counts in (*self._away.values(), *self._back.values()):
                counts[:] = [count * left for count in counts]
        self._aged_at = now
        self._worths.clear()

    def chances(self, kind: Kind) -> list[float]:
        """For each age, the chance to come back within it if still away when it begins."""
        shape = _SHAPES[kind.hint]
        chances = [
            1.0 - ((_SCALE + begin) / (_SCALE + begin + width)) ** shape
            for begin, width in zip(AGES, _WIDTHS, strict=True)
        ]
        for group in kind.kin:
            away, back = self._away.get(group), self._back.get(group)
            if away is None:
                break
            back = back or [0.0] * len(AGES)
            chances = [
                (one_back + _KIN * chance) / (one_away + _KIN)
                for chance, one_away, one_back in zip(chances, away, back, strict=True)
            ]
        return chances

    def per_second(self, kind: Kind, idle: float) -> float:
        """Returns that a second of keeping such a conversation brings; see `best_stretches`."""
        worths = self._worths.get(kind)
        if worths is None:
            worths = self._worths[kind] = best_stretches(self.chances(kind))
        return worths[bisect_right(AGES, idle, 1) - 1]

    def _counts(
        self, counts: dict[tuple[object, ...], list[float]], group: tuple[object, ...]
    ) -> list[float]:
        found = counts.get(group)
        if found is None:
            found = counts[group] = [0.0] * len(AGES)
        return found


def best_stretches(chances: list[float]) -> tuple[float, ...]:
    """For each age, the most returns per second of keeping that any stretch from it on promises.

    A stretch's promise is the chance to return within it, by the time for which blocks are held on
    average until that or its end. So what comes back after a while outranks what is most likely
    gone, though neither may come back at once.
    """
    best: list[float] = []
    for first in range(len(chances)):
        away, held, promise = 1.0, 0.0, 0.0
        for chance, width in zip(chances[first:], _WIDTHS[first:], strict=True):
            held += away * width * (1.0 - chance / 2)
            away *= 1.0 - chance
            promise = max(promise, (1.0 - away) / held)
        best.append(promise)
    return tuple(best)
