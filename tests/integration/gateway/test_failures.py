import asyncio
import json
from typing import Any

import pytest

from kvplane.transfer_params import KEY
from kvplane_services.gateway.config import GatewayConfig
from kvplane_services.router.model import LegKind, RouteOutcome, Strategy
from tests.integration.gateway.conftest import GatewayMaker
from tests.integration.gateway.running_gateway import CHAT, RunningGateway
from tests.integration.gateway.scripted_engine import (
    Behaviour,
    answer,
    cut_short,
    die_at_once,
    events,
    prefill_answer,
    scripted_engine,
    stall,
)

WHOLE = b'{"id":"c","choices":[],"usage":{"prompt_tokens":1},"kv_transfer_params":null}'
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = {**CHAT, "stream": True}
TOO_LONG = b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}'

D, P = LegKind.DECODE, LegKind.PREFILL
OK, FAILED = RouteOutcome.SUCCEEDED, RouteOutcome.FAILED
CANCELLED, REFUSED = RouteOutcome.CANCELLED, RouteOutcome.REFUSED


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def outcomes(gateway: RunningGateway) -> list[tuple[str, LegKind, RouteOutcome]]:
    await gateway.router.all_reported()
    return [
        (decision.removeprefix("decision-"), leg, outcome)
        for decision, leg, outcome in gateway.router.outcomes()
    ]


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_refusal_of_prefill_reaches_the_client(
    make_gateway: GatewayMaker, body: dict[str, Any]
) -> None:
    """A 4xx of the prefill engine arrives with its body and Retry-After; decode is not asked."""
    refusal = answer(TOO_LONG, status=429, Retry_After="7")
    async with make_gateway(prefill=[refusal], decode=[answer(WHOLE)]) as gateway:
        status, got, response = await gateway.chat(body)

        assert (status, got, response.headers["Retry-After"]) == (429, TOO_LONG, "7")
        assert gateway.decode.asked == []
        assert await outcomes(gateway) == [("0", D, CANCELLED), ("0", P, REFUSED)]


async def test_refusal_of_decode_reaches_the_client(make_gateway: GatewayMaker) -> None:
    """A 4xx of the decode engine arrives as it is, and nothing is asked twice."""
    async with make_gateway(decode=[answer(TOO_LONG, status=400)] * 2) as gateway:
        status, got, _ = await gateway.chat(STREAM)

        assert (status, got) == (400, TOO_LONG)
        assert [len(engine.asked) for engine in gateway.decodes] == [1, 0]
        assert await outcomes(gateway) == [("0", D, REFUSED), ("0", P, OK)]


@pytest.mark.parametrize(
    "failure",
    [
        die_at_once,
        answer(b"oops", status=500),
        answer(b"", status=307, Location="http://127.0.0.1:1/"),
        answer(b"no json"),
        cut_short(WHOLE, 20),
    ],
)
async def test_failed_prefill_is_retried_elsewhere(
    make_gateway: GatewayMaker, failure: Behaviour
) -> None:
    """Another prefill engine takes over, as plain P/D, and the client notices nothing."""
    async with make_gateway(prefill=[failure, prefill_answer()], decode=[answer(WHOLE)]) as gateway:
        status, got, _ = await gateway.chat()

        assert (status, got) == (200, WHOLE)
        assert gateway.router.forced == [None, Strategy.RECOMPUTE]
        assert gateway.router.excluded[1] == {gateway.router.decisions[0].prefill.engine}  # type: ignore[union-attr]
        assert gateway.decode.asked[0].json["kv_transfer_params"]["do_remote_prefill"] is True
        assert await outcomes(gateway) == [
            ("0", D, CANCELLED),
            ("0", P, FAILED),
            ("1", D, OK),
            ("1", P, OK),
        ]
        assert gateway.metric('kvplane_leg_retries_total{leg="prefill"}') == 1


@pytest.mark.parametrize("engines", [1, 2, 3])
async def test_decode_serves_alone_when_prefill_fails(
    make_gateway: GatewayMaker, engines: int
) -> None:
    """Without a prefill engine that works the decode engine computes the prompt, marked."""
    async with make_gateway(prefill=[die_at_once] * engines, decode=[answer(WHOLE)]) as gateway:
        status, _, _ = await gateway.chat()

        assert status == 200
        params = gateway.decode.asked[0].json["kv_transfer_params"]
        assert (params["do_remote_prefill"], params["do_remote_decode"]) == (False, False)
        assert KEY in params
        assert sum(len(engine.asked) for engine in gateway.prefills) == min(engines, 2)
        await gateway.router.all_reported()


async def test_frozen_prefill_does_not_hang_the_turn(make_gateway: GatewayMaker) -> None:
    """The prefill leg has a deadline, after which the turn goes on without that engine."""
    config = GatewayConfig(prefill_timeout=0.2, shutdown_grace=0.2)
    async with make_gateway(prefill=[stall], decode=[answer(WHOLE)], config=config) as gateway:
        async with asyncio.timeout(2):
            status, _, _ = await gateway.chat()

        assert status == 200
        await asyncio.wait_for(gateway.prefill.aborted.wait(), 1)
        assert await outcomes(gateway) == [("0", D, OK), ("0", P, FAILED)]


@pytest.mark.parametrize(("prefills", "decodes"), [(2, 2), (1, 2), (2, 1), (1, 1)])
async def test_a_read_that_never_ends_is_recomputed(
    make_gateway: GatewayMaker, prefills: int, decodes: int
) -> None:
    """A pull has a deadline of its own; then the turn goes around both engines if it can."""
    config = GatewayConfig(pull_timeout=0.2, shutdown_grace=0.2)
    async with make_gateway(
        prefill=[prefill_answer()] * prefills, decode=[answer(WHOLE)] * decodes, config=config
    ) as gateway:
        gateway.router.pulls = True
        gateway.prefill.script.append(stall)
        async with asyncio.timeout(2):
            status, got, _ = await gateway.chat()

        assert (status, got) == (200, WHOLE)
        await asyncio.wait_for(gateway.prefill.aborted.wait(), 1)
        first, second = gateway.router.decisions
        assert (first.strategy, second.strategy) == (Strategy.PULL, Strategy.RECOMPUTE)
        assert first.prefill is not None
        assert second.prefill is not None
        # The owner first: it is the one whose silence is nobody's deadline but ours.
        assert (second.decode != first.decode) == (decodes > 1)
        assert (second.prefill != first.prefill) == (prefills > 1 and decodes > 1)
        assert [len(engine.asked) for engine in gateway.decodes] == [0] * (decodes - 1) + [1]
        assert await outcomes(gateway) == [
            ("0", D, CANCELLED),
            ("0", P, FAILED),
            ("1", D, OK),
            ("1", P, OK),
        ]


async def test_a_pull_that_fails_at_once_leaves_the_owner_alone(make_gateway: GatewayMaker) -> None:
    """Only silence throws suspicion on the engine that is read."""
    async with make_gateway(
        prefill=[die_at_once, prefill_answer()], decode=[answer(WHOLE)] * 2
    ) as gateway:
        gateway.router.pulls = True
        status, _, _ = await gateway.chat()

        assert status == 200
        assert [len(engine.asked) for engine in gateway.decodes] == [1, 0]
        await gateway.router.all_reported()


@pytest.mark.parametrize("body", [CHAT, STREAM])
@pytest.mark.parametrize(
    "failure",
    [die_at_once, answer(b"oops", status=503), events(die=True), cut_short(WHOLE, 0)],
)
async def test_decode_is_retried_before_its_first_byte(
    make_gateway: GatewayMaker, failure: Behaviour, body: dict[str, Any]
) -> None:
    """Another decode engine takes over, with a prefill leg of its own."""
    good = events(EVENT, DONE) if body is STREAM else answer(WHOLE)
    async with make_gateway(decode=[failure, good]) as gateway:
        status, got, _ = await gateway.chat(body)

        assert (status, got) == (200, EVENT + DONE if body is STREAM else WHOLE)
        assert [len(engine.asked) for engine in gateway.decodes] == [1, 1]
        assert len(gateway.prefill.asked) == 2
        assert await outcomes(gateway) == [
            ("0", D, FAILED),
            ("0", P, OK),
            ("1", D, OK),
            ("1", P, OK),
        ]


async def test_decode_is_retried_once(make_gateway: GatewayMaker) -> None:
    """Two decode engines that fail are enough: the client is told."""
    async with make_gateway(decode=[die_at_once] * 3) as gateway:
        status, got, _ = await gateway.chat()

        assert status == 502
        assert error_of(got)["code"] == "engine_failed"
        assert [len(engine.asked) for engine in gateway.decodes] == [1, 1, 0]
        await gateway.router.all_reported()


async def test_server_error_of_the_only_decode_engine(make_gateway: GatewayMaker) -> None:
    """A 5xx has OpenAI's shape: the engine's own if it has that, else the gateway's."""
    shaped = b'{"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}'
    async with make_gateway(decode=[answer(shaped, status=500)]) as gateway:
        assert (await gateway.chat())[:2] == (500, shaped)
        gateway.decode.behaviour = answer(b"<html>", status=500)
        status, got, _ = await gateway.chat()
        gateway.decode.behaviour = stall

        assert status == 502
        assert error_of(got)["type"] == "server_error"


async def test_unreachable_engines(make_gateway: GatewayMaker) -> None:
    """Engines that nobody listens for anymore are a 502, soon."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        async with scripted_engine(stall) as gone:
            url = gone.url
        gateway.router.decodes = [url]
        gateway.router.prefills = [url]
        status, got, _ = await gateway.chat()

        assert status == 502
        assert "send the request again" in error_of(got)["message"]


@pytest.mark.parametrize(
    ("sent", "die"),
    [
        ([EVENT], True),
        ([EVENT, EVENT[:20]], True),
        ([EVENT], False),
        ([EVENT.replace(b"a", b"\\ndata: [DONE]\\n\\n")], False),
        ([EVENT, EVENT.replace(b"\n", b"\r\n")], True),
    ],
)
async def test_stream_that_breaks_says_so(
    make_gateway: GatewayMaker, sent: list[bytes], *, die: bool
) -> None:
    """A broken stream ends with an error event, without [DONE], and is not retried."""
    async with make_gateway(decode=[events(*sent, die=die), answer(WHOLE)]) as gateway:
        status, got, _ = await gateway.chat(STREAM)

        assert status == 200
        text = b"".join(sent)
        assert got.startswith(text)
        assert b"\ndata: [DONE]" not in got
        last = got.replace(b"\r\n", b"\n").split(b"\n\n")[-2]
        assert error_of(last.removeprefix(b"data: "))["code"] == "answer_incomplete"
        assert gateway.decodes[1].asked == []
        assert await outcomes(gateway) == [("0", D, FAILED), ("0", P, OK)]


async def test_stream_that_falls_silent_says_so(make_gateway: GatewayMaker) -> None:
    """Silence in the middle of a stream ends it after the limit."""
    config = GatewayConfig(stream_idle_timeout=0.2, shutdown_grace=0.2)
    silent = events(EVENT, b": x\n\n", pause=5)
    async with make_gateway(decode=[silent], config=config) as gateway:
        async with asyncio.timeout(2):
            _, got, _ = await gateway.chat(STREAM)

        assert b"fell silent" in got
        await asyncio.wait_for(gateway.decode.aborted.wait(), 1)


@pytest.mark.parametrize("body", [b"", b'{"id":"c","choices":[', b"<html>"])
async def test_whole_answer_that_is_none(make_gateway: GatewayMaker, body: bytes) -> None:
    """A 200 that holds no answer becomes a 502: never an empty success."""
    async with make_gateway(decode=[answer(body)]) as gateway:
        status, got, _ = await gateway.chat()

        assert status == 502
        assert error_of(got)["code"] == "answer_incomplete"


async def test_whole_answer_cut_short(make_gateway: GatewayMaker) -> None:
    """An answer that breaks off after its first byte is a 502, and no engine runs it again."""
    async with make_gateway(decode=[cut_short(WHOLE, 10), answer(WHOLE)]) as gateway:
        status, got, _ = await gateway.chat()

        assert status == 502
        assert error_of(got)["code"] == "answer_incomplete"
        assert gateway.decodes[1].asked == []
        assert await outcomes(gateway) == [("0", D, FAILED), ("0", P, OK)]


async def test_answer_that_takes_too_long(make_gateway: GatewayMaker) -> None:
    """A decode engine that never answers a request that does not stream is a 504."""
    config = GatewayConfig(answer_timeout=0.2, shutdown_grace=0.2)
    async with make_gateway(decode=[stall], config=config) as gateway:
        status, got, _ = await gateway.chat()

        assert (status, error_of(got)["code"]) == (504, "engine_timeout")


async def test_connection_that_went_stale_is_replaced(make_gateway: GatewayMaker) -> None:
    """A pooled connection that the engine closes as it is used again costs nobody an error."""
    uses = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request a connection, and hangs up on the second as vLLM's server may."""
        nonlocal uses
        try:
            for use in range(2):
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                await reader.readexactly(length)
                if use:
                    uses += 1
                    break
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
                    + str(len(WHOLE)).encode()
                    + b"\r\n\r\n"
                    + WHOLE
                )
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server, make_gateway(prefill=[], decode=[answer(WHOLE)]) as gateway:
        gateway.router.decodes = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"]
        statuses = [(await gateway.chat())[0] for _ in range(4)]

        assert statuses == [200] * 4
        assert uses >= 1
        assert len(gateway.router.decisions) == 4


async def test_gauges_return_to_zero(make_gateway: GatewayMaker) -> None:
    """Legs in flight are counted up and down once, whatever becomes of them."""
    async with make_gateway(prefill=[die_at_once], decode=[answer(WHOLE)]) as gateway:
        for behaviour in (answer(WHOLE), die_at_once, answer(TOO_LONG, status=400), events(EVENT)):
            gateway.decode.behaviour = behaviour
            await gateway.chat(STREAM)

        await gateway.router.all_reported()
        assert gateway.metric('kvplane_legs_in_flight{leg="prefill"}') == 0
        assert gateway.metric('kvplane_legs_in_flight{leg="decode"}') == 0
        assert (
            gateway.metric(
                'kvplane_turns_total{outcome="succeeded",reason="no_lease",strategy="recompute"}'
            )
            == 1
        )
