import logging

import pytest

from kvplane_services.gateway.config import GatewayConfig
from tests.integration.gateway.conftest import GatewayMaker
from tests.integration.gateway.raw_http import CHAT_BODY, RawAnswer, exchange, post
from tests.integration.gateway.scripted_engine import answer

WHOLE = b'{"id":"c","choices":[]}'
CHUNKED = b"Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("request_bytes", "status", "says"),
    [
        (post(CHAT_BODY, b"X-A: a\x01b"), 400, "Invalid header value char"),
        (post(CHAT_BODY, b"X-A: a\0b"), 400, "Invalid header value char"),
        (post(b"zz\r\nabc\r\n0\r\n\r\n", CHUNKED, length=-1), 400, "Invalid character in chunk"),
        (post(CHAT_BODY, b"Content-Length: -3", length=-1), 400, "Content-Length"),
        (post(CHAT_BODY, b"Content-Length: 3"), 400, "Content-Length"),
        (post(CHAT_BODY, CHUNKED), 400, "Content-Length"),
        (post(CHAT_BODY, *[b"X-%d: a" % one for one in range(300)]), 400, "Too many headers"),
        (post(CHAT_BODY, b"X-A: " + b"a" * 70_000), 431, "65536 bytes"),
        (
            post(CHAT_BODY, *[b"X-%d: " % one + b"a" * 1000 for one in range(70)]),
            431,
            "65536 bytes",
        ),
        (post(CHAT_BODY, path=b"/" + b"a" * 70_000), 431, "65536 bytes"),
        (b"G\x01T / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "Invalid method"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "HTTPS"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "HTTP"),
        (post(CHAT_BODY, b"Expect: the-unexpected"), 417, "Expect"),
    ],
)
async def test_what_is_not_http(
    make_gateway: GatewayMaker,
    caplog: pytest.LogCaptureFixture,
    request_bytes: bytes,
    status: int,
    says: str,
) -> None:
    """What is refused before it is a request is refused in OpenAI's shape, and in no log."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        got = await exchange(gateway.url, request_bytes)

        assert got.status == status
        assert says in got.error["message"]
        assert got.error["type"] == "invalid_request_error"
        assert "\n" not in got.error["message"]
        assert len(got.error["message"]) < 300
        assert _tells_no_software(got)
        assert gateway.router.subjects == []
        assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_large_headers_pass(make_gateway: GatewayMaker) -> None:
    """Headers of 60 kB, as long credentials and baggage make them, reach the engines."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        got = await exchange(gateway.url, post(CHAT_BODY, b"X-Baggage: " + b"a" * 60_000))

        assert got.status == 200
        assert len(gateway.decode.asked[0].headers["x-baggage"]) == 60_000


async def test_no_answer_tells_what_software_runs(make_gateway: GatewayMaker) -> None:
    """No answer has a Server header: neither whole nor streamed, neither good nor bad."""
    async with make_gateway(decode=[answer(WHOLE, Server="vLLM")]) as gateway:
        for method, path in (("GET", "/health"), ("GET", "/nowhere"), ("PUT", "/v1/models")):
            url = gateway.url + path
            async with gateway.session.request(method, url) as response:
                assert "Server" not in response.headers
        _, _, response = await gateway.chat()

        assert "Server" not in response.headers


@pytest.mark.parametrize(
    "values", [["nonsense"], ["local", "pull"], ["local", "auto"], ["\udcff"], ["local, pull"]]
)
async def test_misuse_of_the_strategy_header(make_gateway: GatewayMaker, values: list[str]) -> None:
    """A strategy that is none, or is not one, is refused with those there are."""
    config = GatewayConfig(allow_strategy_header=True, shutdown_grace=0.2)
    headers = [b"x-kvplane-strategy: " + one.encode(errors="surrogateescape") for one in values]
    async with make_gateway(decode=[answer(WHOLE)], config=config) as gateway:
        got = await exchange(gateway.url, post(CHAT_BODY, *headers))

        assert (got.status, got.error["param"]) == (400, "x-kvplane-strategy")
        assert "local, pull, recompute, auto" in got.error["message"]
        assert gateway.router.subjects == []


def _tells_no_software(got: RawAnswer) -> bool:
    return got.headers.get("server", "kvplane") == "kvplane"
