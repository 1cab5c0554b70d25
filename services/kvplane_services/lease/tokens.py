"""Fencing tokens."""

from kvplane_services.store.ports import Sequence


class TokenIssuer:
    """Draws fencing tokens, each larger than every one drawn or seen before."""

    def __init__(self, *, tokens: Sequence) -> None:
        self._tokens = tokens
        self._highest = 0

    def saw(self, token: int) -> None:
        """Notes a token that was granted in an earlier life of the plane."""
        self._highest = max(self._highest, token)

    async def next(self) -> int:
        """The next token. Raises Unavailable."""
        self._highest = max(self._highest + 1, await self._tokens.next())
        return self._highest
