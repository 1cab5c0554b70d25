"""Passes a stream of events on to the client, as bytes, as they come."""

import aiohttp
from aiohttp import web

from kvplane_services.gateway.openai_errors import OpenAIError
from kvplane_services.gateway.params_eraser import ParamsEraser

# Enough to see the end of the last event in, whatever blanks follow it.
_TAIL = 256
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_DONE = b"[DONE]"


class ClientGone(Exception):
    """The client closed its connection while it was written to."""


class StreamRelay:
    """Relays one stream. Bytes are cut nowhere and changed nowhere (but see params_eraser.py).

    Whoever reads too slowly slows down the engine: writing waits for the client's socket, and
    what is not read from the engine's socket makes the engine wait in turn.

    Args:
        upstream: The engine's answer, whose body nobody has read from yet.

    """

    def __init__(self, *, upstream: aiohttp.ClientResponse) -> None:
        self._upstream = upstream
        self._eraser = ParamsEraser()
        self._tail = b""

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

    async def relay(self, first: bytes, client: web.StreamResponse) -> str:
        """Sends everything on, until the stream ends or breaks.

        Args:
            first: What `first_piece` gave.
            client: The prepared answer to the client.

        Returns:
            What broke the stream; empty if it is complete.

        Raises:
            ClientGone: The client is not there any more.

        """
        piece = first
        while piece:
            await self._write(client, self._eraser.feed(piece))
            try:
                piece = await self._upstream.content.readany()
            except TimeoutError:
                return "fell silent"
            except aiohttp.ClientError:
                return "broke off"
        return "" if _DONE in self._tail else "ended without [DONE]"

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
        self._tail = (self._tail + piece[-_TAIL:])[-_TAIL:]
        try:
            await client.write(piece)
        except ConnectionError as error:
            raise ClientGone from error
