"""What a retention is worth to an engine that is short of memory.

Recomputing costs about the same for each token, so that what counts is how likely a conversation
comes back. The engine knows of each how often it did so here, and in which order retentions were
used. Both together make the classic rule of a cache whose entries have sizes and counts
(GreedyDual-Size-Frequency): a retention starts at the engine's water mark plus what a turn of it
is worth per block, times its turns; what is given up raises the mark to its own worth. So one
that nobody uses is overtaken by newer ones, the later the more often its conversation came
back. No clock, and nothing to learn first.

Where the plane says what retentions are worth, that counts instead: it knows more of them.

Before that come facts that say more than any count: whether the conversation went on without
this retention, whether the plane let it lapse, and whether a turn under way counts on it.
"""

import enum
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kvplane.client.names import SessionKey

# Conversations whose turns are remembered; a few hundred bytes each.
_MOST_SESSIONS = 4096
# A token of a long context costs more, for it attends to all before it: by this part per token,
# for a model of about 30 billion parameters.
_DEARER_PER_TOKEN = 12e-6


class Standing(enum.IntEnum):
    """How much stands against giving a retention up."""

    SUPERSEDED = 0
    LAPSED = 1
    KEPT = 2
    CLAIMED = 3


class Worth(NamedTuple):
    """Compares by standing, and among equals by `value`, which is per block."""

    standing: Standing
    value: float


@dataclass(slots=True)
class Merit:
    """What the engine knows of one retention.

    Attributes:
        turns: Turns of its conversation that ended here, this one included.
        cost: What recomputing its tokens costs, per token; about 1.
        mark: The water mark at its last use.
        told: What the plane says that it is worth per block; None before it does.

    """

    turns: int
    cost: float
    mark: float
    told: float | None = None

    @property
    def value(self) -> float:
        """What it is worth per block, as far as the engine knows."""
        return self.mark + self.turns * self.cost


def middle_told(merits: Iterable[Merit]) -> float | None:
    """What stands for the worth of those of which the plane has not said it; None if of all."""
    told = sorted(merit.told for merit in merits if merit.told is not None)
    return told[len(told) // 2] if told else None


class Merits:
    """Counts turns and holds the water mark."""

    def __init__(self) -> None:
        self._mark = 0.0
        # Turns that ended here and the last of them, by conversation; the longest unused first.
        self._sessions: OrderedDict[SessionKey, tuple[int, str]] = OrderedDict()

    def begin(self, name: str, session: SessionKey, tokens: int) -> Merit:
        """A turn ended and its blocks stay."""
        turns = 1
        if session.session_id:
            turns += self._sessions.pop(session, (0, ""))[0]
            self._sessions[session] = (turns, name)
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return Merit(turns, 1 + tokens * _DEARER_PER_TOKEN, self._mark)

    def used(self, merit: Merit) -> None:
        """Another engine read it."""
        merit.mark = self._mark

    def given_up(self, merit: Merit) -> None:
        """It was the least worth when memory was short."""
        self._mark = max(self._mark, merit.value)

    def is_superseded(self, name: str, session: SessionKey) -> bool:
        """Whether a later turn of the conversation ended here."""
        return self._sessions.get(session, (0, name))[1] != name
