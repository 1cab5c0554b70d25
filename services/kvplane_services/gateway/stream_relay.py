"""Passes a stream of events on to the client, as bytes, as they come."""

import re
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from kvplane_services.gateway.openai_errors import OpenAIError
from kvplane_services.gateway.params_eraser import ParamsEraser

# Enough to see the end of the last event in, whatever blanks follow it.
_TAIL = 256
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
# At the beginning of a line: what a model writes has its line ends escaped.
_DONE = re.compile(rb"[\r\n]data: ?\[DONE\]")


class ClientGone(Exception):
    """The client closed its connection while it was written to."""


class StreamRelay:
    """Relays one stream. Bytes are cut nowhere and changed nowhere (but see params_eraser.py).

    Whoever reads too slowly slows down the engine: writing waits for the client's socket, and
    what is not read from the engine's socket makes the engine wait in turn.

    Not promised: that everything which comes before an error event is a whole event. An engine
    that dies in the middle of one leaves half an event, which the client has already; a blank
    line ends it, so that the client gets it as an event of its own, with data that is not JSON,
    before the one that says what happened. To hold each event back until it is whole would cost
    every stream a copy and a wait, for one that is broken anyway.

    Args:
        upstream: The engine's answer, whose body nobody has read from yet.

    """

    def __init__(self, *, upstream: aiohttp.ClientResponse) -> None:
        self._upstream = upstream
        self._eraser = ParamsEraser()
        # The end of what was sent, after a line end that stands for the beginning.
        self._tail = b"\n"

    async def first_piece(self) -> bytes:
        """Waits for the first bytes.

        Raises:
            aiohttp.ClientError: The stream broke or ended before them.
            TimeoutError: They did not come in time.

        """
        piece = await self._upstream.content.readany()
        if not piece:
            raise aiohttp.ClientPayloadError("the stream ended before its first byte")
        return piece

    async def relay(
        self, first: bytes, client: web.StreamResponse, *, on_done: Callable[[], Awaitable[None]]
    ) -> str:
        """Sends everything on, until the stream ends or breaks.

        Args:
            first: What `first_piece` gave.
            client: The prepared answer to the client.
            on_done: Awaited when [DONE] is seen, before the client sees it and may send its
                next turn.

        Returns:
            What broke the stream; empty if it is complete.

        Raises:
            ClientGone: The client is not there any more.

        """
        piece, done = first, False
        while piece:
            shown = self._eraser.feed(piece)
            self._tail = (self._tail + shown[-_TAIL:])[-_TAIL:]
            if not done and _DONE.search(self._tail):
                done = True
                await on_done()
            await self._write(client, shown)
            try:
                piece = await self._upstream.content.readany()
            except TimeoutError:
                return "" if done else "fell silent"
            except aiohttp.ClientError:
                return "" if done else "broke off"
        return "" if done else "ended too early"

    async def say_broken(self, client: web.StreamResponse, error: OpenAIError) -> None:
        """Tells the client, in an event, that nothing more will come.

        Raises:
            ClientGone: The client is not there any more.

        """
        # What was cut in the middle of an event has to end before another one can begin.
        end = b"" if self._tail.endswith(_EVENT_ENDS) else b"\n\n"
        await self._write(client, end + b"data: " + error.body() + b"\n\n")

    async def _write(self, client: web.StreamResponse, piece: bytes) -> None:
        if not piece:
            return
        try:
            await client.write(piece)
        except ConnectionError as error:
            raise ClientGone from error
