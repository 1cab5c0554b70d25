"""Fencing tokens."""

from dataclasses import dataclass

from kvplane_services.store.ports import Sequence

# How far an adopted token may be ahead of the plane's own. Sequences count about as fast as
# microseconds pass, so this is what clocks of planes may differ by, 50 days, and it leaves tokens
# far from the end of 64 bits.
_FURTHEST_AHEAD = 1 << 42


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens that were drawn together: consecutive ones from `first` on.

    `by_sequence` is where the plane's own sequence stood.
    """

    first: int
    by_sequence: int

    def may_adopt(self, token: int) -> bool:
        """Whether a plane can have granted a token in an earlier life.

        Not if it is not positive, or far ahead of the plane's own: it would leave none for the
        grants to come.
        """
        return 0 < token <= self.by_sequence + _FURTHEST_AHEAD


class TokenIssuer:
    """Draws fencing tokens, each larger than every one that was known here when it was drawn."""

    def __init__(self, *, tokens: Sequence) -> None:
        self._tokens = tokens
        self._highest = 0

    @property
    def highest(self) -> int:
        """The largest token known here."""
        return self._highest

    def note(self, token: int) -> None:
        """Notes a token of a lease, granted by whichever replica."""
        self._highest = max(self._highest, token)

    async def draw(self, count: int) -> Drawn:
        """Draws tokens. Raises Unavailable.

        What was known before is smaller even if it came from a clock that ran ahead. Others draw
        while this waits, so what becomes known meanwhile may be larger.
        """
        known = self._highest
        drawn = await self._tokens.next(count)
        first = drawn if drawn > known else self._highest + 1
        self.note(first + count - 1)
        return Drawn(first, drawn)
