import gzip
import logging
import zlib

import pytest

from kvplane_services.gateway.config import GatewayConfig
from tests.integration.gateway.conftest import GatewayMaker
from tests.integration.gateway.raw_http import CHAT_BODY, exchange, post
from tests.integration.gateway.running_gateway import CHAT
from tests.integration.gateway.scripted_engine import answer

WHOLE = b'{"id":"c","choices":[]}'


def raw_deflate(body: bytes) -> bytes:
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compress.compress(body) + compress.flush()


@pytest.mark.parametrize(
    ("encoding", "body", "status", "code", "says"),
    [
        ("gzip", CHAT_BODY, 400, "invalid_body", "is not gzip"),
        ("gzip", gzip.compress(CHAT_BODY)[:-9], 400, "invalid_body", "ends too early"),
        ("gzip", gzip.compress(CHAT_BODY)[:-8] + bytes(8), 400, "invalid_body", "is not gzip"),
        ("gzip", gzip.compress(CHAT_BODY) + b"more", 400, "invalid_body", "is not gzip"),
        ("gzip", b"", 400, "invalid_body", "ends too early"),
        ("deflate", CHAT_BODY, 400, "invalid_body", "is not deflate"),
        ("deflate", zlib.compress(CHAT_BODY)[:-5], 400, "invalid_body", "ends too early"),
        ("deflate", zlib.compress(CHAT_BODY) + b"more", 400, "invalid_body", "is not deflate"),
        ("br", CHAT_BODY, 415, "unsupported_encoding", "gzip or deflate"),
        ("zstd", CHAT_BODY, 415, "unsupported_encoding", "gzip or deflate"),
        ("compress", CHAT_BODY, 415, "unsupported_encoding", "gzip or deflate"),
        ("gzip, gzip", CHAT_BODY, 415, "unsupported_encoding", "gzip or deflate"),
    ],
)
async def test_body_that_is_not_encoded_as_it_says(
    make_gateway: GatewayMaker,
    caplog: pytest.LogCaptureFixture,
    encoding: str,
    body: bytes,
    status: int,
    code: str,
    says: str,
) -> None:
    """A wrong or unknown encoding is the client's error, said to it and in no log."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        got = await exchange(gateway.url, post(body, b"Content-Encoding: " + encoding.encode()))

        assert (got.status, got.error["code"]) == (status, code)
        assert says in got.error["message"]
        assert got.error["type"] == "invalid_request_error"
        assert (status == 415) == ("accept-encoding" in got.headers)
        assert gateway.router.subjects == []
        assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(CHAT_BODY)),
        ("GZIP", gzip.compress(CHAT_BODY)),
        ("x-gzip", gzip.compress(CHAT_BODY)),
        ("gzip", gzip.compress(CHAT_BODY[:9]) + gzip.compress(CHAT_BODY[9:])),
        ("deflate", zlib.compress(CHAT_BODY)),
        ("deflate", raw_deflate(CHAT_BODY)),
        ("identity", CHAT_BODY),
    ],
)
async def test_body_that_is_encoded_as_it_says(
    make_gateway: GatewayMaker, encoding: str, body: bytes
) -> None:
    """gzip in one or more members, and deflate with or without zlib's wrapper, are understood."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        got = await exchange(gateway.url, post(body, b"Content-Encoding: " + encoding.encode()))

        assert (got.status, got.body) == (200, WHOLE)
        assert gateway.decode.asked[0].json["messages"] == CHAT["messages"]
        assert "content-encoding" not in gateway.decode.asked[0].headers


async def test_body_that_grows_too_large(make_gateway: GatewayMaker) -> None:
    """The limit holds for what a compressed body becomes."""
    config = GatewayConfig(max_body_bytes=100_000, shutdown_grace=0.2)
    bomb = gzip.compress(b" " * 10_000_000)
    async with make_gateway(decode=[answer(WHOLE)], config=config) as gateway:
        got = await exchange(gateway.url, post(bomb, b"Content-Encoding: gzip"))

        assert len(bomb) < 100_000
        assert (got.status, got.error["code"]) == (413, "body_too_large")
        assert gateway.router.subjects == []


async def test_body_that_stops_coming(make_gateway: GatewayMaker) -> None:
    """A client that says more than it sends is told after a while, and let go."""
    config = GatewayConfig(body_idle_timeout=0.1, shutdown_grace=0.2)
    chunked = post(b'3\r\n{"a\r\n', b"Transfer-Encoding: chunked", length=-1)
    async with make_gateway(decode=[answer(WHOLE)], config=config) as gateway:
        short = await exchange(gateway.url, post(CHAT_BODY, length=500))
        broken = await exchange(gateway.url, chunked, b"zz\r\n")

        for got in (short, broken):
            assert (got.status, got.error["code"]) == (408, "body_incomplete")
            assert "Content-Length" in got.error["message"]
        assert gateway.router.subjects == []


async def test_body_that_comes_slowly(make_gateway: GatewayMaker) -> None:
    """What bounds the wait is silence, not how long the body takes."""
    config = GatewayConfig(body_idle_timeout=0.2, shutdown_grace=0.2)
    head, _, body = post(CHAT_BODY).partition(b"\r\n\r\n")
    pieces = [body[at : at + 10] for at in range(0, len(body), 10)]
    async with make_gateway(decode=[answer(WHOLE)], config=config) as gateway:
        got = await exchange(gateway.url, head + b"\r\n\r\n", *pieces, pause=0.08)

        assert len(pieces) * 0.08 > 0.4
        assert got.status == 200
