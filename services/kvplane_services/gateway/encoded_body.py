"""The body of a request as it comes over the wire, and what it holds."""

import asyncio
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from kvplane_services.gateway.openai_errors import OpenAIError

_GZIP = zlib.MAX_WBITS | 16
_DEFLATE = zlib.MAX_WBITS
# Some clients send deflate without the wrapper that it should have.
_BARE_DEFLATE = -zlib.MAX_WBITS
# In the first byte of that wrapper: what method compressed the rest.
_METHOD, _METHOD_DEFLATE = 0x0F, 8

_NAMES = {"": "", "identity": "", "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A body as it came.

    Attributes:
        pieces: Its bytes.
        encoding: `gzip`, `deflate`, or empty for none.

    """

    pieces: Sequence[bytes]
    encoding: str

    @classmethod
    async def read(cls, request: web.Request, *, limit: int, idle_timeout: float) -> "EncodedBody":
        """Waits for all of a request's body.

        Args:
            request: The server must not decompress for it.
            limit: Most bytes.
            idle_timeout: Longest wait for more bytes, seconds.

        Raises:
            OpenAIError: The body is too large, is not complete, or has an encoding that the
                gateway does not know.

        """
        encoding = _encoding(request)
        if (request.content_length or 0) > limit:
            raise _too_large(limit)
        pieces: list[bytes] = []
        size = 0
        try:
            while piece := await _piece(request, idle_timeout):
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                pieces.append(piece)
        except TimeoutError as error:
            raise _incomplete(idle_timeout) from error
        except web.RequestPayloadError as error:
            raise _invalid("the request body is not sent as its headers say") from error
        return cls(pieces, encoding)

    @property
    def work(self) -> int:
        """How large to think of the body that comes out; compressed ones tell by no means."""
        return sys.maxsize if self.encoding else sum(len(piece) for piece in self.pieces)

    def plain(self, *, limit: int) -> bytes:
        """The body without its encoding.

        Args:
            limit: Most bytes.

        Raises:
            OpenAIError: It is not encoded as it says, or becomes too large.

        """
        raw = b"".join(self.pieces)
        if not self.encoding:
            return raw
        try:
            return _decompressed(raw, self.encoding, limit)
        except zlib.error as error:
            raise _invalid(
                f"the request body is not {self.encoding}, as its Content-Encoding says"
            ) from error


async def _piece(request: web.Request, idle_timeout: float) -> bytes:
    async with asyncio.timeout(idle_timeout):
        return await request.content.readany()


def _decompressed(raw: bytes, encoding: str, limit: int) -> bytes:
    wbits = _GZIP
    if encoding == "deflate":
        wrapped = raw[:1] and raw[0] & _METHOD == _METHOD_DEFLATE
        wbits = _DEFLATE if wrapped else _BARE_DEFLATE
    plain: list[bytes] = []
    room = limit
    while True:
        member = zlib.decompressobj(wbits)
        plain.append(member.decompress(raw, room + 1))
        room -= len(plain[-1])
        if room < 0:
            raise _too_large(limit)
        if not member.eof:
            raise _invalid(f"the request body, which is {encoding}, ends too early")
        raw = member.unused_data
        if not raw:
            return b"".join(plain)
        if encoding != "gzip":
            raise zlib.error("more follows")


def _encoding(request: web.Request) -> str:
    given = ", ".join(request.headers.getall("Content-Encoding", []))
    try:
        return _NAMES[given.strip().lower()]
    except KeyError:
        raise OpenAIError(
            415,
            f"the content encoding {given[:64]!r} is not known here: send the body plain, or "
            "compressed with gzip or deflate",
            code="unsupported_encoding",
            headers={"Accept-Encoding": "gzip, deflate"},
        ) from None


def _too_large(limit: int) -> OpenAIError:
    return OpenAIError(
        413,
        f"the request body is larger than the gateway's limit of {limit} bytes: send less, "
        "or ask its operator to raise gateway.max_body_bytes",
        code="body_too_large",
    )


def _incomplete(waited: float) -> OpenAIError:
    return OpenAIError(
        408,
        f"the request body is not complete, and nothing more of it came for {waited:g} seconds: "
        "it has to be as long as Content-Length says, or well-formed chunks",
        code="body_incomplete",
        # Where the next request would begin is anybody's guess.
        headers={"Connection": "close"},
    )


def _invalid(message: str) -> OpenAIError:
    return OpenAIError(400, message, code="invalid_body")
