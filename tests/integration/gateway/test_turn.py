import asyncio
import json
from typing import Any

import openai
import pytest

from kvplane.transfer_params import KEY
from kvplane_services.errors import NotFound, Saturated, StrategyImpossible, Unavailable
from kvplane_services.gateway.config import GatewayConfig
from kvplane_services.router.model import LegKind, RouteOutcome, Strategy
from tests.integration.gateway.conftest import GatewayMaker
from tests.integration.gateway.recording_router import MARK
from tests.integration.gateway.running_gateway import CHAT
from tests.integration.gateway.scripted_engine import HANDLE, answer, events, prefill_answer

WHOLE = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"tiny", "choices":[{'
    b'"index":0,"message":{"role":"assistant",'
    b'"content":"caf\\u00e9 \xc3\xa9 \\"kv_transfer_params\\": 1"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7},'
    b'"kv_transfer_params":null}'
)


def chunk(text: str) -> bytes:
    event = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    }
    return b"data: " + json.dumps(event).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def test_both_legs_run_and_the_answer_is_unchanged(make_gateway: GatewayMaker) -> None:
    """A whole answer reaches the client byte for byte after a prefill leg of one token."""
    async with make_gateway(decode=[answer(WHOLE, x_engine="d")]) as gateway:
        status, body, response = await gateway.chat()

        assert (status, body) == (200, WHOLE)
        assert response.headers["x-engine"] == "d"
        assert response.content_type == "application/json"
        prefill, decode = gateway.prefill.asked[0], gateway.decode.asked[0]
        assert prefill.json["max_tokens"] == 1
        assert prefill.json["kv_transfer_params"]["do_remote_decode"] is True
        assert decode.json["kv_transfer_params"] == {**HANDLE, KEY: MARK}
        await gateway.router.all_reported()
        assert gateway.router.outcomes() == [
            ("decision-0", LegKind.DECODE, RouteOutcome.SUCCEEDED),
            ("decision-0", LegKind.PREFILL, RouteOutcome.SUCCEEDED),
        ]
        reports = {report.leg: report for report in gateway.router.reports}
        assert reports[LegKind.PREFILL].prompt_tokens == 40
        assert reports[LegKind.PREFILL].cached_tokens == 16
        assert reports[LegKind.DECODE].output_tokens == 2
        assert reports[LegKind.DECODE].time_to_first_byte > 0


async def test_handle_in_a_whole_answer_becomes_null(make_gateway: GatewayMaker) -> None:
    """The engine's kv_transfer_params never reach the client; the rest of the bytes do."""
    printed = WHOLE.replace(b":null}", b': {"remote_block_ids": [[1, 2]], "s": "}\\"{"} }')
    async with make_gateway(decode=[answer(printed)]) as gateway:
        _, body, _ = await gateway.chat()

        assert body == WHOLE.replace(b":null}", b": null }")


async def test_stream_is_passed_on_as_bytes(make_gateway: GatewayMaker) -> None:
    """Events cut inside characters, with comments, CRLF and names, arrive as they were sent."""
    text = (
        b": keep-alive\n\nevent: x\r\n"
        + chunk("é\U0001f600")
        + b'data: {"choices":[],"usage":{"prompt_tokens":1}}\r\n\r\n'
        + DONE
    )
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    async with make_gateway(decode=[events(*pieces, pause=0.001)]) as gateway:
        status, body, response = await gateway.chat({**CHAT, "stream": True})

        assert (status, body) == (200, text)
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"


async def test_handle_in_a_stream_becomes_null(make_gateway: GatewayMaker) -> None:
    """Builds that print kv_transfer_params in the last event tell the client nothing."""
    text = (
        b'data: {"choices":[],"kv_transfer_params":{"remote_host":"10.0.0.1","a":[1]}}\n\n' + DONE
    )
    pieces = [text[at : at + 1] for at in range(len(text))]
    async with make_gateway(decode=[events(*pieces)]) as gateway:
        _, body, _ = await gateway.chat({**CHAT, "stream": True})

        assert body == b'data: {"choices":[],"kv_transfer_params":null}\n\n' + DONE


async def test_first_byte_comes_before_the_last_token(make_gateway: GatewayMaker) -> None:
    """The client reads the first event while the engine still has others to send."""
    async with make_gateway(decode=[events(chunk("a"), chunk("b"), DONE, pause=0.2)]) as gateway:
        url = gateway.url + "/v1/chat/completions"
        async with gateway.session.post(url, json={**CHAT, "stream": True}) as response:
            assert await response.content.readany() == chunk("a")
            assert not gateway.router.reports or all(
                report.leg is LegKind.PREFILL for report in gateway.router.reports
            )
            assert await response.read() == chunk("b") + DONE


async def test_body_reaches_the_decode_leg_as_it_came(make_gateway: GatewayMaker) -> None:
    """Large integers, escapes, blanks and the order of keys are the client's."""
    raw = (
        b'{ "seed" : 12345678901234567890123, "model":"tiny","temperature":1.0e-3,\n'
        b'"messages":[{"content":"caf\\u00e9","role":"user"}], "x_unknown":{"b":1,"a":2} }\n'
    )
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        await gateway.chat(raw)

        decode, prefill = gateway.decode.asked[0].raw, gateway.prefill.asked[0].raw
        assert decode.startswith(raw.rstrip()[:-1])
        for kept in (
            b'"messages":[{"content":"caf\\u00e9","role":"user"}]',
            b'"x_unknown":{"b":1,"a":2}',
            b'"seed":12345678901234567890123',
            b'"temperature":1.0e-3',
        ):
            assert kept in prefill


async def test_what_clients_must_not_say_is_replaced(make_gateway: GatewayMaker) -> None:
    """Parameters, request ids and routing headers of the client do not reach an engine."""
    body: dict[str, Any] = {**CHAT, "kv_transfer_params": {"do_remote_prefill": True, "evil": 1}}
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        gateway.router.rank = 3
        await gateway.chat(
            body,
            X_Request_Id="mine",
            X_data_parallel_rank="7",
            x_kvplane_strategy="local",
            x_prefiller_host_port="h:1",
            Cookie="a=b",
            Authorization="Bearer key",
        )

        for asked in (gateway.prefill.asked[0], gateway.decode.asked[0]):
            assert "evil" not in asked.json["kv_transfer_params"]
            assert asked.headers["x-data-parallel-rank"] == "3"
            assert asked.headers["x-request-id"] != "mine"
            assert asked.headers["authorization"] == "Bearer key"
            assert not {"x-kvplane-strategy", "x-prefiller-host-port", "cookie"} & set(
                asked.headers
            )
        ids = {gateway.prefill.asked[0].headers["x-request-id"]}
        ids.add(gateway.decode.asked[0].headers["x-request-id"])
        assert len(ids) == 2
        assert gateway.router.forced == [None]


async def test_strategy_header_is_obeyed_only_if_allowed(make_gateway: GatewayMaker) -> None:
    """An operator may let clients force a strategy, and then wrong names are refused."""
    config = GatewayConfig(allow_strategy_header=True, response_headers=True, shutdown_grace=0.2)
    async with make_gateway(decode=[answer(WHOLE)], config=config) as gateway:
        _, _, response = await gateway.chat(x_kvplane_strategy="LOCAL")
        status, body, _ = await gateway.chat(x_kvplane_strategy="fast")

        assert gateway.router.forced == [Strategy.LOCAL]
        assert gateway.prefill.asked == []
        assert response.headers["x-kvplane-strategy"] == "local"
        assert response.headers["x-kvplane-decision"] == "decision-0"
        assert response.headers["x-kvplane-reason"] == "no_lease"
        assert "implicit" in response.headers["x-kvplane-session"]
        assert status == 400
        assert "local, pull, recompute, auto" in json.loads(body)["error"]["message"]


async def test_prefill_without_params_is_counted(make_gateway: GatewayMaker) -> None:
    """Without kv_transfer_params from prefill the decode engine computes alone, and it shows."""
    async with make_gateway(prefill=[prefill_answer(None)], decode=[answer(WHOLE)]) as gateway:
        status, _, _ = await gateway.chat()

        assert status == 200
        assert gateway.decode.asked[0].json["kv_transfer_params"] == {
            "do_remote_decode": False,
            "do_remote_prefill": False,
            KEY: MARK,
        }
        assert gateway.metric("kvplane_prefill_without_params_total") == 1


@pytest.mark.parametrize(
    ("extra", "params"),
    [
        ({"prompt_logprobs": 1}, True),
        ({"echo": True}, True),
        ({"use_beam_search": True}, False),
    ],
)
async def test_turns_that_cannot_be_split_are_decoded_alone(
    make_gateway: GatewayMaker, extra: dict[str, Any], *, params: bool
) -> None:
    """Logprobs of the prompt and beam searches need one engine that computes everything."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        status, _, _ = await gateway.chat({**CHAT, **extra})

        assert status == 200
        assert gateway.prefill.asked == []
        assert ("kv_transfer_params" in gateway.decode.asked[0].json) is params
        await gateway.router.all_reported()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": CHAT["messages"], "n": 2}),
        ("/v1/chat/completions", {"messages": CHAT["messages"], "n": 3, "stream": True}),
        ("/v1/completions", {"prompt": "a", "n": 2}),
        ("/v1/completions", {"prompt": "a", "best_of": 2}),
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}),
    ],
)
async def test_several_sequences_are_decoded_alone(
    make_gateway: GatewayMaker, path: str, fields: dict[str, Any]
) -> None:
    """Several prompts or choices never share the blocks that one hands over, and are counted."""
    behaviour = events(chunk("a"), DONE) if "stream" in fields else answer(WHOLE)
    async with make_gateway(decode=[behaviour]) as gateway:
        status, _, _ = await gateway.post(path, {"model": "tiny", **fields})

        assert status == 200
        assert gateway.prefill.asked == []
        assert gateway.decode.asked[0].path == path
        assert gateway.decode.asked[0].json == {"model": "tiny", **fields}
        counted = 'kvplane_turns_not_disaggregated_total{why="several_sequences"}'
        assert gateway.metric(counted) == 1
        await gateway.router.all_reported()
        assert gateway.router.outcomes() == [
            ("decision-0", LegKind.DECODE, RouteOutcome.SUCCEEDED),
            ("decision-0", LegKind.PREFILL, RouteOutcome.CANCELLED),
        ]


async def test_token_ids_are_one_prompt(make_gateway: GatewayMaker) -> None:
    """A prompt of token ids runs in two legs like any other."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        await gateway.post("/v1/completions", {"model": "tiny", "prompt": [1, 2, 3], "n": 1})

        assert [asked.path for asked in gateway.prefill.asked] == ["/v1/completions"]
        assert "kv_transfer_params" in gateway.decode.asked[0].json
        counted = 'kvplane_turns_not_disaggregated_total{why="several_sequences"}'
        assert gateway.metric(counted) == 0


async def test_official_client_whole_and_streaming(make_gateway: GatewayMaker) -> None:
    """The openai package works against the gateway."""
    async with (
        make_gateway(decode=[answer(WHOLE)]) as gateway,
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        models = [model.id async for model in client.models.list()]
        whole = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}]
        )
        gateway.decode.behaviour = events(chunk("a"), chunk("b"), DONE)
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        text = "".join([event.choices[0].delta.content or "" async for event in stream])
        gateway.decode.behaviour = events(chunk("a"), die=True)
        broken = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        with pytest.raises(openai.APIError, match="send the request again"):
            async for _ in broken:
                pass

        assert models == ["tiny"]
        assert (await client.models.retrieve("tiny")).id == "tiny"
        assert whole.choices[0].message.content == 'café é "kv_transfer_params": 1'
        assert text == "ab"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFound("no engine ever served 'x'"), 404, "model_not_found"),
        (StrategyImpossible("no lease"), 409, "strategy_impossible"),
        (Saturated("full", retry_after=0.2), 429, "saturated"),
        (Unavailable("none", retry_after=2.5), 503, "unavailable"),
    ],
)
async def test_router_errors_reach_the_client(
    make_gateway: GatewayMaker, error: Any, status: int, code: str
) -> None:
    """What keeps the router from deciding is told in OpenAI's shape, with when to retry."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        gateway.router.fails_with = error
        got, body, response = await gateway.chat()

        assert got == status
        told = json.loads(body)["error"]
        assert (told["code"], told["message"]) == (code, error.message)
        assert set(told) == {"message", "type", "param", "code"}
        if status in (429, 503):
            assert int(response.headers["Retry-After"]) >= 1


async def test_trace_context_reaches_the_engines(make_gateway: GatewayMaker) -> None:
    """A caller's W3C trace goes on at the engines."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        await gateway.chat(traceparent=parent)

        for asked in (gateway.prefill.asked[0], gateway.decode.asked[0]):
            assert asked.headers["traceparent"].split("-")[1] == parent.split("-")[1]


@pytest.mark.parametrize("stream", [False, True])
async def test_report_overtakes_the_next_turn(make_gateway: GatewayMaker, *, stream: bool) -> None:
    """The router hears that decode is over before the client does, unless it is slow to listen."""
    behaviour = events(chunk("a"), DONE) if stream else answer(WHOLE)
    async with make_gateway(decode=[behaviour]) as gateway:
        gateway.router.report_takes = 0.02
        await gateway.chat({**CHAT, "stream": stream})
        heard = {report.leg for report in gateway.router.reports}
        gateway.router.report_takes = 1.5
        async with asyncio.timeout(1):
            await gateway.chat({**CHAT, "stream": stream})
        gateway.router.report_takes = 0

        assert LegKind.DECODE in heard
