"""Large bodies leave the gateway answering others."""

import asyncio
import gzip
import json
import time

import pytest

from kvplane_services.errors import Saturated
from tests.integration.gateway.conftest import GatewayMaker

USER = {"role": "user"}

# Seconds. The client shares the gateway's loop, and takes some of it; work on a whole body on
# that loop takes longer than this by far.
LONGEST = 0.4


def chat(messages: list[dict[str, str]]) -> bytes:
    body = {"model": "tiny", "messages": messages}
    return json.dumps(body, separators=(",", ":")).encode()


BODIES = {
    "60 MB in 60,000 messages": lambda: chat([{**USER, "content": "\u00e9" * 160}] * 60_000),
    "21 MB in 700,000 messages": lambda: chat([{**USER, "content": "x"}] * 700_000),
    "30 MB in 10,000,000 messages": lambda: chat([{}] * 10_000_000),
    "60 MB that come as 60 kB": lambda: gzip.compress(
        chat([{**USER, "content": "a" * 60 * 2**20}])
    ),
}


@pytest.mark.parametrize("kind", list(BODIES))
async def test_health_is_answered_while_a_large_body_is_understood(
    make_gateway: GatewayMaker, kind: str
) -> None:
    """However a body is large, /health does not wait for the work that it makes."""
    raw = BODIES[kind]()
    headers = {"Content_Encoding": "gzip"} if raw.startswith(b"\x1f\x8b") else {}
    async with make_gateway() as gateway:
        # Engines would take their part of the loop too.
        gateway.router.fails_with = Saturated("full", retry_after=1.0)
        turn = asyncio.create_task(gateway.chat(raw, **headers))
        longest = 0.0
        while not turn.done():
            # The pause counts too: it is where this test waits for its turn on the loop.
            before = time.monotonic()
            await asyncio.sleep(0.002)
            async with gateway.session.get(gateway.url + "/health") as response:
                assert response.status == 200
            longest = max(longest, time.monotonic() - before)
        status, _, _ = await turn

        assert status == 429
        assert len(gateway.router.subjects) == 1
        assert longest < LONGEST
