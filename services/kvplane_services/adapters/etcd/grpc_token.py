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
        self._drawing: asyncio.Future[str] | None = None

    async def metadata(self) -> Metadata:
        """What a call carries. Raises what `authenticate` raises."""
        value = self._value
        if value is None and self._authenticate is not None:
            value = await self._draw(self._authenticate)
        return (_REQUIRE_LEADER, ("token", value)) if value else (_REQUIRE_LEADER,)

    def expire(self, metadata: Metadata) -> bool:
        """Forgets the token of a call that etcd refused; tells whether another can be had."""
        if self._authenticate is None:
            return False
        sent = dict(metadata).get("token", "")
        if self._value == sent:
            self._value = None
        return True

    async def _draw(self, authenticate: Callable[[], Awaitable[str]]) -> str:
        # One attempt for all calls that wait for a token, also if it fails: one after the other
        # they would wait for an etcd that is away for ever longer.
        if self._drawing is None:
            self._drawing = asyncio.ensure_future(authenticate())
            self._drawing.add_done_callback(self._drawn)
        return await asyncio.shield(self._drawing)

    def _drawn(self, drawing: asyncio.Future[str]) -> None:
        self._drawing = None
        if not drawing.cancelled() and drawing.exception() is None:
            self._value = drawing.result()
