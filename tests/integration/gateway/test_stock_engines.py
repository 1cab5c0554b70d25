"""Turns whose engines run vLLM's own connector."""

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from kvplane_services.engine.model import FixedRetention
from kvplane_services.router.model import KeptTurn, LegKind
from tests.integration.gateway.conftest import GatewayMaker
from tests.integration.gateway.running_gateway import CHAT, RunningGateway
from tests.integration.gateway.scripted_engine import (
    HANDLE,
    Asked,
    Behaviour,
    answer,
    die_at_once,
    events,
    prefill_answer,
)

KEPT = {"do_remote_decode": True, "remote_request_id": "chatcmpl-1", "remote_num_tokens": 70}
MESSAGE = {"role": "assistant", "content": "In line 3."}
WHOLE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop", "stop_reason": None}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    "kv_transfer_params": KEPT,
}
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
PLAIN, TRUSTED = FixedRetention(480.0), FixedRetention(480.0, trust_history=True)


def kept_of(gateway: RunningGateway) -> list[KeptTurn | None]:
    """What the reports of decode legs said is kept."""
    return [one.kept for one in gateway.router.reports if one.leg is LegKind.DECODE]


def known(gateway: RunningGateway, what: str) -> float:
    """Turns of whose blocks that is known."""
    return gateway.metric(f'kvplane_turns_fixed_retention_total{{known="{what}"}}')


def next_turn(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a client sends that goes on after the answer."""
    messages = [*body["messages"], MESSAGE, {"role": "user", "content": "And why?"}]
    return {**body, "messages": messages}


async def test_a_whole_answer_tells_what_is_kept(make_gateway: GatewayMaker) -> None:
    """The report has it as it came; the client and the engine get nothing of ours."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        gateway.router.fixed_retention = PLAIN
        status, body, _ = await gateway.chat()
        await gateway.router.all_reported()

        assert (status, json.loads(body)["kv_transfer_params"]) == (200, None)
        assert gateway.decode.asked[0].json["kv_transfer_params"] == HANDLE
        [kept] = kept_of(gateway)
        assert kept is not None
        assert (json.loads(kept.handle), kept.history_digest) == (KEPT, b"")
        assert known(gateway, "leased") == 1


async def test_a_stream_and_a_silent_engine_tell_nothing(make_gateway: GatewayMaker) -> None:
    """Each is counted, so that an operator sees what is lost."""
    silent = {**WHOLE, "kv_transfer_params": None}
    async with make_gateway(decode=[_in_turn(events(EVENT, DONE), answer(silent))]) as gateway:
        gateway.router.fixed_retention = TRUSTED
        await gateway.chat({**CHAT, "stream": True})
        await gateway.chat()
        await gateway.router.all_reported()

        assert kept_of(gateway) == [None, None]
        assert (known(gateway, "streamed"), known(gateway, "untold")) == (1, 1)


async def test_the_digest_of_a_trusted_turn_is_that_of_the_next(make_gateway: GatewayMaker) -> None:
    """Made from the first decision on that says whose history is trusted."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        gateway.router.fixed_retention = TRUSTED
        await gateway.chat()
        await gateway.chat(next_turn(CHAT))
        edited = next_turn({**CHAT, "messages": [{"role": "user", "content": "edited"}]})
        await gateway.chat(edited)
        await gateway.router.all_reported()

        first = kept_of(gateway)[0]
        assert first is not None
        assert first.history_digest
        digests = [subject.history_digest for subject in gateway.router.subjects]
        assert digests[:2] == [b"", first.history_digest]
        assert digests[2] not in (b"", first.history_digest)


async def test_no_digest_is_made_where_no_history_is_trusted(make_gateway: GatewayMaker) -> None:
    """It would cost each turn a pass over its messages."""
    async with make_gateway(decode=[answer(WHOLE)]) as gateway:
        gateway.router.fixed_retention = PLAIN
        await gateway.chat()
        await gateway.chat(next_turn(CHAT))

        assert [subject.history_digest for subject in gateway.router.subjects] == [b"", b""]


async def test_an_engine_that_serves_alone_gets_no_parameters(make_gateway: GatewayMaker) -> None:
    """Whether a prefill leg failed, handed nothing over, or cannot be: it would keep for ever."""
    for prefill, extra in (
        (die_at_once, {}),
        (prefill_answer(None), {}),
        (prefill_answer(), {"prompt_logprobs": 1}),
    ):
        async with make_gateway(prefill=[prefill], decode=[answer(WHOLE)]) as gateway:
            gateway.router.fixed_retention = PLAIN
            status, _, _ = await gateway.chat({**CHAT, **extra})

            assert status == 200
            assert "kv_transfer_params" not in gateway.decode.asked[-1].json


async def test_an_engine_that_cannot_read_is_asked_to_compute(make_gateway: GatewayMaker) -> None:
    """vLLM answers a failed read with 500; nothing is wrong with the engine that does."""
    once = _in_turn(answer(b"a read failed", status=500), prefill_answer())
    async with make_gateway(prefill=[once], decode=[answer(WHOLE)]) as gateway:
        gateway.router.fixed_retention = TRUSTED
        gateway.router.pulls = True
        status, _, _ = await gateway.chat()
        await gateway.router.all_reported()

        assert status == 200
        assert len(gateway.prefill.asked) == 2
        assert gateway.router.excluded == [frozenset(), frozenset()]
        assert gateway.decode.asked[0].json["kv_transfer_params"] == HANDLE


async def test_an_engine_that_breaks_off_is_not(make_gateway: GatewayMaker) -> None:
    """No answer at all is the engine's own failure, as elsewhere."""
    async with make_gateway(
        prefill=[die_at_once, prefill_answer()], decode=[answer(WHOLE)]
    ) as gateway:
        gateway.router.fixed_retention = TRUSTED
        gateway.router.pulls = True
        await gateway.chat()
        await gateway.router.all_reported()

        assert [len(engine.asked) for engine in gateway.prefills] == [1, 1]


def _in_turn(*behaviours: Behaviour) -> Behaviour:
    """One behaviour for each request, in order."""
    left = list(behaviours)

    async def behave(request: web.Request, asked: Asked) -> web.StreamResponse:
        return await left.pop(0)(request, asked)

    return behave
