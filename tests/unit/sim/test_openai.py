"""OpenAI requests and answers of the simulated engine."""

import json
from typing import Any

import pytest

from kvplane_services.sim.answers import Answer, usage
from kvplane_services.sim.openai import (
    BadRequest,
    ChatBody,
    CompletionBody,
    Parsed,
    parse,
)
from kvplane_services.sim.request import FinishReason

MESSAGES = [{"role": "user", "content": "hi"}]


def _chat(**fields: Any) -> Parsed:
    body = {"messages": MESSAGES, **fields}
    return parse(json.dumps(body).encode(), ChatBody, model="m", max_model_len=100)


def _completion(**fields: Any) -> Parsed:
    body = {"prompt": "hi", **fields}
    return parse(json.dumps(body).encode(), CompletionBody, model="m", max_model_len=100)


def test_limits_have_the_defaults_of_vllm() -> None:
    """A chat may fill the context, a completion gets 16 tokens; the newer name goes first."""
    assert _chat().sampling.max_tokens == 100 - len(_chat().prompt)
    assert _completion().sampling.max_tokens == 16
    assert _chat(max_tokens=3, max_completion_tokens=5).sampling.max_tokens == 5


def test_limits_are_cut_to_the_room_there_is() -> None:
    """More than fits behind the prompt is not refused, it is less."""
    assert _completion(max_tokens=100).sampling.max_tokens == 98


def test_prompts_come_as_text_or_tokens() -> None:
    """Text, token ids, and lists of one prompt mean the same."""
    given: list[Any] = ["hi", ["hi"], [104, 105], [[104, 105]]]

    assert [_completion(prompt=one).prompt for one in given] == [[104, 105]] * 4


def test_unknown_fields_and_sampling_have_no_effect() -> None:
    """What only changes sampling is accepted: the model is deterministic."""
    parsed = _chat(temperature=0.7, top_p=0.9, seed=1, user="u", something_new={"a": 1})

    assert parsed.prompt == _chat().prompt
    assert parsed.stream is False


def test_the_salt_separates_without_changing_the_prompt() -> None:
    """A cache salt changes what may be shared, not what is asked."""
    assert _chat(cache_salt="s").context != _chat().context
    assert _chat(cache_salt="s").prompt == _chat().prompt


def test_parameters_travel_untouched() -> None:
    """`kv_transfer_params` reach the engine with every key."""
    params = {"do_remote_decode": True, "kvplane": {"x": [1]}, "unknown": 2}

    assert _chat(kv_transfer_params=params).params == params


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"model": "other"}, 404, "does not exist"),
        ({"messages": []}, 400, "must not be empty"),
        ({"messages": "hi"}, 400, "Expected `array`"),
        ({"max_tokens": "5"}, 400, "Expected `int"),
        ({"max_tokens": 0}, 400, "at least 1"),
        ({"max_tokens": 101}, 400, "cannot be greater than max_model_len=100"),
        ({"messages": [{"role": "user", "content": "x" * 200}]}, 400, "maximum context length"),
        ({"n": 2}, 400, "one choice"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"stream_options": {"include_usage": True}}, 400, "stream=True"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text parts"),
    ],
)
def test_what_cannot_be_served_is_refused(fields: dict[str, Any], status: int, says: str) -> None:
    """A refusal has vLLM's status and shape, and says what to change."""
    with pytest.raises(BadRequest, match=says) as caught:
        _chat(**fields)

    assert caught.value.status == status
    error = caught.value.body()["error"]
    assert error["code"] == status
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("fields", [{"prompt": []}, {"prompt": ["a", "b"]}, {"prompt": [999]}])
def test_odd_prompts_are_refused(fields: dict[str, Any]) -> None:
    """No prompt, several prompts and unknown tokens are refused."""
    with pytest.raises(BadRequest):
        _completion(**fields)


@pytest.mark.parametrize("raw", [b"{", b"", b"[]", b'{"messages": [}', b"\xff"])
def test_malformed_bodies_are_refused(raw: bytes) -> None:
    """Broken JSON is a 400, whatever is broken."""
    with pytest.raises(BadRequest, match="validation error"):
        parse(raw, ChatBody, model="m", max_model_len=100)


def test_the_parameters_are_in_the_whole_answer_only() -> None:
    """Chunks of a stream never carry `kv_transfer_params`, as with vLLM."""
    answer = Answer(chat=True, request_id="r", model="m", created=1)
    whole = answer.whole(
        "x",
        finish_reason=FinishReason.STOP,
        stop_reason=None,
        usage=usage(prompt=1, completion=1, cached=None),
        params={"a": 1},
    )
    last = answer.chunk("x", finish_reason=FinishReason.STOP, stop_reason=None)

    assert whole["kv_transfer_params"] == {"a": 1}
    assert "kv_transfer_params" not in last
    assert "prompt_tokens_details" not in whole["usage"]
