"""What clients and gateways see of an engine."""

import json
from typing import Any

import pytest

from tests.contract.engine_conformance.bench import Bench, call, new_session, opening
from tests.support.vllm_engines import MODEL, ask

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def _post(bench: Bench, path: str, **body: Any) -> Any:
    answer = call(bench.pair.decode, path, json.dumps({"model": MODEL, **body}).encode())
    assert answer.status == 200, answer.text
    return answer.json


def _events(bench: Bench, path: str, **body: Any) -> list[Any]:
    body |= {"model": MODEL, "stream": True}
    answer = call(bench.pair.decode, path, json.dumps(body).encode())
    assert answer.status == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def _error(bench: Bench, path: str, body: bytes, status: int, **kind: str) -> dict[str, Any]:
    answer = call(bench.pair.decode, path, body, **kind)
    assert answer.status == status, answer.text
    error: dict[str, Any] = answer.json["error"]
    assert error["code"] == status
    assert error["message"]
    assert error["type"]
    assert "param" in error
    return error


def test_models_are_listed(bench: Bench) -> None:
    """The model is listed under the name that requests use, with its longest context."""
    answer = call(bench.pair.prefill, "/v1/models").json

    assert answer["object"] == "list"
    (card,) = answer["data"]
    assert (card["id"], card["object"]) == (MODEL, "model")
    assert card["max_model_len"] > 1000


def test_health_and_metrics_answer(bench: Bench) -> None:
    """Probes and scrapes find what they look for."""
    assert call(bench.pair.decode, "/health").status == 200
    text = call(bench.pair.decode, "/metrics").text
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:nixl_num_failed_transfers_total",
        "vllm:nixl_num_kv_expired_reqs_total",
        "vllm:nixl_num_notifications_after_expiry_total",
    ):
        assert f"\n{name}{{" in text, name
    for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
        assert f'source="{source}"' in text


def test_a_chat_answer_has_its_shape(bench: Bench) -> None:
    """A chat is answered as one choice with its usage, and without parameters if none came."""
    body = _post(
        bench, CHAT, messages=opening(new_session()), max_tokens=5, ignore_eos=True, temperature=0
    )

    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == MODEL
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert choice["stop_reason"] is None
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert body.get("kv_transfer_params") is None


def test_a_chat_stream_has_its_shape(bench: Bench) -> None:
    """Role first, then text, then the reason it ended, then the usage, then [DONE]."""
    request = {"messages": opening(new_session()), "max_tokens": 5, "ignore_eos": True}
    whole = _post(bench, CHAT, **request, temperature=0)

    chunks = _events(bench, CHAT, **request, temperature=0, stream_options={"include_usage": True})

    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    first, *rest, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in rest][-1] == "length"
    assert {chunk["choices"][0]["finish_reason"] for chunk in rest[:-1]} == {None}
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in rest)
    assert text == whole["choices"][0]["message"]["content"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert usage["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert not any("kv_transfer_params" in chunk for chunk in chunks)


def test_no_usage_chunk_unless_asked(bench: Bench) -> None:
    """A stream ends with its finish reason where no usage was asked for."""
    chunks = _events(bench, CHAT, messages=opening(new_session()), max_tokens=2, ignore_eos=True)

    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert all(chunk.get("usage") is None for chunk in chunks)


def test_a_completion_answer_has_its_shape(bench: Bench) -> None:
    """A plain completion, whole and streamed, gives the same text."""
    request = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
    body = _post(bench, COMPLETIONS, **request)

    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 4
    chunks = _events(bench, COMPLETIONS, **request)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_answers_are_deterministic(bench: Bench) -> None:
    """Asked twice without temperature, both engines give one answer."""
    messages = opening(new_session())
    answers = [
        ask(engine, messages, max_tokens=16).token_ids
        for engine in (bench.pair.prefill, bench.pair.decode, bench.pair.prefill)
    ]

    assert answers[0] == answers[1] == answers[2]


def test_generated_tokens_survive_as_history(bench: Bench) -> None:
    """A reply sent back as history has the tokens that were generated."""
    messages = opening(new_session())
    first = ask(bench.pair.prefill, messages, max_tokens=24, ignore_eos=True)
    following = [*messages, {"role": "assistant", "content": first.text}]
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [*following, {"role": "user", "content": "Go on."}],
            "max_tokens": 1,
            "return_token_ids": True,
        }
    ).encode()

    prompt = call(bench.pair.prefill, CHAT, body).json["prompt_token_ids"]

    start = first.prompt_tokens
    assert prompt[start : start + 24] == first.token_ids


def test_an_unknown_model_is_404(bench: Bench) -> None:
    """A model that is not served is named in the refusal."""
    body = json.dumps({"model": "nope", "messages": [{"role": "user", "content": "x"}]}).encode()

    error = _error(bench, CHAT, body, 404)
    assert error["type"] == "NotFoundError"
    assert "`nope` does not exist" in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("body", [b'{"model": ', b"[]", b"{}"])
def test_malformed_bodies_are_400(bench: Bench, path: str, body: bytes) -> None:
    """Broken or incomplete JSON is refused in the shape of OpenAI's errors."""
    _error(bench, path, body, 400)


def test_other_content_types_are_400(bench: Bench) -> None:
    """A body that is not declared as JSON is refused."""
    body = json.dumps({"model": MODEL, "prompt": "x"}).encode()

    _error(bench, COMPLETIONS, body, 400, kind="text/plain")


def _limit(bench: Bench) -> int:
    limit: int = call(bench.pair.decode, "/v1/models").json["data"][0]["max_model_len"]
    return limit


def test_too_long_prompts_are_400(bench: Bench) -> None:
    """A prompt beyond the context is refused with the limit."""
    limit = _limit(bench)
    body = json.dumps({"model": MODEL, "prompt": "x" * (limit * 2)}).encode()

    error = _error(bench, COMPLETIONS, body, 400)
    assert f"maximum context length is {limit}" in error["message"]


def test_too_long_answers_are_400(bench: Bench) -> None:
    """More output than the context holds is refused with the limit."""
    limit = _limit(bench)
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": limit + 1}).encode()

    error = _error(bench, COMPLETIONS, body, 400)
    assert f"max_model_len={limit}" in error["message"]


def test_answers_are_cut_to_the_context(bench: Bench) -> None:
    """Output that does not fit behind the prompt is cut, not refused."""
    limit = _limit(bench)
    body = _post(bench, COMPLETIONS, prompt="x" * (limit - 4), max_tokens=limit, ignore_eos=True)

    assert body["usage"]["completion_tokens"] == 4
    assert body["choices"][0]["finish_reason"] == "length"
