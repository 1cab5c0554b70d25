"""What a turn meets, and in which order a run deals it out."""

import enum
import random
from collections.abc import Mapping


class Situation(enum.Enum):
    """What happened to a conversation before or while its turn was served."""

    NEXT = "next"
    EDITED = "edited"
    TRUNCATED = "truncated"
    FORKED = "forked"
    REWOUND = "rewound"
    CONCURRENT = "concurrent"
    RETRIED = "retried"
    EXPIRED = "expired"
    RECLAIMED = "reclaimed"
    RESTARTED = "restarted"


# How often in a pack. Restarts take long, and come by the number of turns instead.
_PACK: Mapping[Situation, int] = {
    Situation.NEXT: 9,
    Situation.EDITED: 3,
    Situation.TRUNCATED: 2,
    Situation.FORKED: 3,
    Situation.REWOUND: 2,
    Situation.CONCURRENT: 2,
    Situation.RETRIED: 2,
    Situation.EXPIRED: 2,
    Situation.RECLAIMED: 2,
}


class Deck:
    """Deals situations at random, all of them before any pack is dealt again."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._left: list[Situation] = []

    def deal(self) -> Situation:
        """The next one."""
        if not self._left:
            self._left = [one for one, count in _PACK.items() for _ in range(count)]
            self._dice.shuffle(self._left)
        return self._left.pop()
