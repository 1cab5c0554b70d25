"""Fencing tokens."""

from kvplane_services.store.ports import Sequence

# How far an adopted token may be ahead of the plane's own. Sequences count about as fast as
# microseconds pass, so this is what clocks of planes may differ by, 50 days, and it leaves tokens
# far from the end of 64 bits.
_FURTHEST_AHEAD = 1 << 42


class TokenIssuer:
    """Draws fencing tokens, each larger than every one drawn or adopted before."""

    def __init__(self, *, tokens: Sequence) -> None:
        self._tokens = tokens
        self._highest = 0

    async def adopt(self, token: int) -> bool:
        """Notes a token that was granted in an earlier life of the plane.

        Returns:
            False if no plane can have granted it: it is not positive, or far ahead of the
            plane's own. Such a token would leave none for the grants to come.

        Raises:
            Unavailable: The plane's own tokens cannot be asked for.

        """
        if token <= 0 or token > await self._tokens.next() + _FURTHEST_AHEAD:
            return False
        self._highest = max(self._highest, token)
        return True

    async def next(self) -> int:
        """The next token. Raises Unavailable."""
        self._highest = max(self._highest + 1, await self._tokens.next())
        return self._highest
