"""Requests that no client library would send."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.integration.gateway.running_gateway import CHAT

CHAT_BODY = json.dumps(CHAT).encode()


@dataclass(frozen=True)
class RawAnswer:
    """An answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error object, which has OpenAI's shape."""
        assert self.headers["content-type"].startswith("application/json")
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def post(
    body: bytes, *headers: bytes, length: int | None = None, path: bytes = b"/v1/chat/completions"
) -> bytes:
    """A POST of JSON; without `length` the body's own is said, with -1 none is."""
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: gateway", b"Content-Type: application/json"]
    if length != -1:
        lines.append(b"Content-Length: %d" % (len(body) if length is None else length))
    return b"\r\n".join([*lines, *headers]) + b"\r\n\r\n" + body


async def exchange(url: str, *pieces: bytes, pause: float = 0.05) -> RawAnswer:
    """Sends the pieces, one after the other, and reads one answer."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        for number, piece in enumerate(pieces):
            await asyncio.sleep(pause if number else 0)
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(5):
            status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[:-1]
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await reader.readexactly(int(headers["content-length"]))
    finally:
        writer.close()
    return RawAnswer(status=int(status.split()[1]), headers=headers, body=body)
