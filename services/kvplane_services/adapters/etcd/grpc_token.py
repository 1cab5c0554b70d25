"""The token that says to etcd who is calling."""

import asyncio
from collections.abc import Awaitable, Callable

Metadata = tuple[tuple[str, str], ...]

# Sent with each call. A node that is cut from the others then says so at once, and ends streams.
_REQUIRE_LEADER = ("hasleader", "true")


class Token:
    """What calls carry. A token is drawn when it is first needed, and when one is stale.

    Args:
        authenticate: Draws one from etcd; returns an empty one where etcd asks nobody. None if
            this process has no user.

    """

    def __init__(self, authenticate: Callable[[], Awaitable[str]] | None) -> None:
        self._authenticate = authenticate
        self._value: str | None = None if authenticate else ""
        self._drawing = asyncio.Lock()

    async def metadata(self) -> Metadata:
        """What a call carries. Raises what `authenticate` raises."""
        value = self._value
        if value is None:
            value = await self._draw()
        return (_REQUIRE_LEADER, ("token", value)) if value else (_REQUIRE_LEADER,)

    def expire(self, metadata: Metadata) -> bool:
        """Forgets the token of a call that etcd refused; tells whether another can be had."""
        if self._authenticate is None:
            return False
        sent = dict(metadata).get("token", "")
        if self._value == sent:
            self._value = None
        return True

    async def _draw(self) -> str:
        # Whatever number of calls wait for a token, one asks for it.
        async with self._drawing:
            if self._value is None and self._authenticate is not None:
                self._value = await self._authenticate()
            return self._value or ""
