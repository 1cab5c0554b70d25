"""Kinds of conversations, as far as the kind says how soon one comes back. Pure."""

import enum
import functools
from bisect import bisect_right
from dataclasses import dataclass

# Turns from this one on are of one kind.
MOST_TURNS = 9
# First turn of each group of turns.
_TURNS = (1, 2, 3, 5, MOST_TURNS)
# Seconds at which groups of pauses begin.
_PAUSES = (0.0, 10.0, 30.0, 60.0, 120.0, 240.0)
# Tokens at which groups of growths begin.
_GROWTHS = (0, 1000, 3000, 8000, 16_000)


class Hint(enum.Enum):
    """What a client said of a conversation after its last turn."""

    NONE = "none"
    STAY = "stay"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Kind:
    """What returns are foretold from; made by `kind_of`.

    `turn` counts from 1 and stops at `MOST_TURNS`; `pause` is the group that the pause before the
    last turn fell into, -1 if there was none or it is not known; `growth` is the group of the
    tokens that the last turn added, all of them if it was the first.
    """

    turn: int
    pause: int
    growth: int
    hint: Hint

    @property
    def kin(self) -> tuple[tuple[object, ...], ...]:
        """What groups it belongs to: the widest first, the kind's own last."""
        turns = bisect_right(_TURNS, self.turn)
        return (
            (self.hint,),
            (self.hint, turns),
            (self.hint, turns, self.growth),
            (self.hint, turns, self.growth, self.pause),
        )

    def hinted(self, hint: Hint) -> "Kind":
        """The same with another hint."""
        return _kind(self.turn, self.pause, self.growth, hint)

    def next(self, *, pause: float | None, growth: int) -> "Kind":
        """The kind after another turn: began after `pause` seconds, and added `growth` tokens."""
        group = -1 if pause is None else bisect_right(_PAUSES, pause) - 1
        turn = min(self.turn + 1, MOST_TURNS)
        return _kind(turn, group, _growth(growth), Hint.NONE)


def first_kind(tokens: int) -> Kind:
    """The kind of a conversation whose first turn left so many tokens."""
    return _kind(1, -1, _growth(tokens), Hint.NONE)


def _growth(tokens: int) -> int:
    return max(bisect_right(_GROWTHS, tokens) - 1, 0)


@functools.cache
def _kind(turn: int, pause: int, growth: int, hint: Hint) -> Kind:
    # There are few, and each is one object however many conversations are of that kind.
    return Kind(turn, pause, growth, hint)
