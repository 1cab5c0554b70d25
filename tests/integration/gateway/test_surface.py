import asyncio
import json
import time
from collections.abc import AsyncGenerator

import pytest

from kvplane_services.gateway.config import GatewayConfig
from tests.integration.gateway.conftest import GatewayMaker
from tests.integration.gateway.running_gateway import CHAT
from tests.integration.gateway.scripted_engine import answer, stall

WHOLE = b'{"id":"c","choices":[],"kv_transfer_params":null}'


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        (b"{", 400, "invalid_json", "not valid JSON"),
        (b"[1]", 400, "invalid_json", "must be a JSON object"),
        (b"\xef\xbb\xbf{}", 400, "invalid_json", "not valid JSON"),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "invalid_json", "nested too deeply"),
        (b"", 400, "invalid_json", "is empty"),
        (rb'{"model":"tiny\ud800"}', 400, "invalid_json", "half a character"),
        (b'{"messages":[]}', 400, "missing_required_parameter", "GET /v1/models"),
        (b'{"model":"","messages":[]}', 400, "missing_required_parameter", "'model'"),
        (b'{"model":7,"messages":[]}', 400, "invalid_type", "must be a string"),
        (b'{"model":"tiny"}', 400, "missing_required_parameter", "'messages'"),
    ],
)
async def test_bad_bodies(
    make_gateway: GatewayMaker, body: bytes, status: int, code: str, says: str
) -> None:
    """What is wrong with a body is said in OpenAI's shape, and nobody else is bothered."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        got, text, response = await gateway.chat(body)

        error = json.loads(text)["error"]
        assert (got, error["code"]) == (status, code)
        assert says in error["message"]
        assert error["type"] == "invalid_request_error"
        assert response.content_type == "application/json"
        assert gateway.router.subjects == []


async def test_body_too_large(make_gateway: GatewayMaker) -> None:
    """A body above the limit is refused, with the limit, whether it says its size or not."""
    config = GatewayConfig(max_body_bytes=1000, shutdown_grace=0.2)
    large = json.dumps({**CHAT, "x": "y" * 2000}).encode()

    async def pieces() -> AsyncGenerator[bytes]:
        yield large

    async with make_gateway(decode=[answer(WHOLE)], config=config) as gateway:
        url = gateway.url + "/v1/chat/completions"
        for data in (large, pieces()):
            async with gateway.session.post(
                url, data=data, headers={"Content-Type": "application/json"}
            ) as response:
                error = json.loads(await response.read())["error"]
                assert response.status == 413
                assert "1000 bytes" in error["message"]


async def test_large_body_passes(make_gateway: GatewayMaker) -> None:
    """Tens of megabytes reach both engines unchanged, and probes are answered meanwhile."""
    image = "data:image/png;base64," + "A" * (40 * 2**20)
    content = [{"type": "image_url", "image_url": {"url": image}}]
    raw = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": content}]}).encode()
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        turn = asyncio.create_task(gateway.chat(raw))
        longest = 0.0
        while not turn.done():
            before = time.monotonic()
            async with gateway.session.get(gateway.url + "/health") as response:
                assert response.status == 200
            longest = max(longest, time.monotonic() - before)
            await asyncio.sleep(0.005)
        status, _, _ = await turn

        assert status == 200
        assert gateway.decode.asked[0].raw.startswith(raw[:-1])
        assert image.encode() in gateway.prefill.asked[0].raw
        # The engines of this test run on the same loop, so this bounds more than the gateway.
        assert longest < 3


async def test_large_answer_passes(make_gateway: GatewayMaker) -> None:
    """A whole answer of megabytes, as logprobs make it, is unchanged."""
    large = b'{"choices":[{"logprobs":"' + b"x" * (5 * 2**20) + b'"}],"usage":null}'
    async with make_gateway(decode=[answer(large)]) as gateway:
        status, got, _ = await gateway.chat()

        assert (status, got) == (200, large)


async def test_wrong_content_type(make_gateway: GatewayMaker) -> None:
    """Anything but JSON is refused with 415; a body without a type counts as JSON."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        url = gateway.url + "/v1/chat/completions"
        raw = json.dumps(CHAT).encode()
        statuses = []
        for kind in ("text/plain", "application/json; charset=utf-8", "application/vnd.x+json"):
            async with gateway.session.post(
                url, data=raw, headers={"Content-Type": kind}
            ) as response:
                statuses.append(response.status)
        async with gateway.session.post(
            url, data=raw, skip_auto_headers=["Content-Type"]
        ) as response:
            statuses.append(response.status)

        assert statuses == [415, 200, 200, 200]


async def test_compressed_body_is_understood(make_gateway: GatewayMaker) -> None:
    """A client may compress its body; engines get it plain."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        url = gateway.url + "/v1/chat/completions"
        async with gateway.session.post(url, json=CHAT, compress="gzip") as response:
            assert response.status == 200

        assert gateway.decode.asked[0].json["messages"] == CHAT["messages"]
        assert "content-encoding" not in gateway.decode.asked[0].headers


async def test_unknown_paths_and_methods(make_gateway: GatewayMaker) -> None:
    """What the gateway does not serve is a 404 or 405 in OpenAI's shape."""
    async with make_gateway(decode=[]) as gateway:
        told = {}
        for method, path in (
            ("GET", "/"),
            ("POST", "/v1/embeddings"),
            ("GET", "/v1/chat/completions"),
            ("GET", "/v1/models/none"),
        ):
            async with gateway.session.request(method, gateway.url + path) as response:
                told[path] = (response.status, json.loads(await response.read())["error"]["code"])

        assert told == {
            "/": (404, "unknown_url"),
            "/v1/embeddings": (404, "unknown_url"),
            "/v1/chat/completions": (405, "method_not_allowed"),
            "/v1/models/none": (404, "model_not_found"),
        }


async def test_models_health_and_readiness(make_gateway: GatewayMaker) -> None:
    """Models are listed in OpenAI's shape; without one the gateway lives but is not ready."""
    async with make_gateway(decode=[]) as gateway:
        gateway.router.served = ("org/a", "b")
        async with gateway.session.get(gateway.url + "/v1/models") as response:
            listed = await response.json()
        async with gateway.session.get(gateway.url + "/v1/models/org/a") as response:
            one = await response.json()
        async with gateway.session.get(gateway.url + "/readyz") as response:
            ready = response.status
        gateway.router.served = ()
        async with gateway.session.get(gateway.url + "/readyz") as response:
            unready = (response.status, (await response.json())["error"]["message"])
        async with gateway.session.get(gateway.url + "/health") as response:
            alive = response.status
        async with gateway.session.get(gateway.url + "/metrics") as response:
            metrics = (response.content_type, await response.text())

        assert [card["id"] for card in listed["data"]] == ["org/a", "b"]
        assert listed["object"] == "list"
        assert {card["object"] for card in listed["data"]} == {"model"}
        assert one["id"] == "org/a"
        assert (ready, unready) == (200, (503, "no engine serves a model yet"))
        assert alive == 200
        assert metrics[0] == "text/plain"


async def test_many_idle_streams(make_gateway: GatewayMaker) -> None:
    """Hundreds of silent streams at once leave the gateway answering."""
    async with make_gateway(prefill=[], decode=[stall]) as gateway:
        turns = [asyncio.create_task(gateway.chat({**CHAT, "stream": True})) for _ in range(300)]
        await gateway.decode.asked_times(300)
        before = time.monotonic()
        async with gateway.session.get(gateway.url + "/health") as response:
            assert response.status == 200
        assert time.monotonic() - before < 2
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        await gateway.router.all_reported()
