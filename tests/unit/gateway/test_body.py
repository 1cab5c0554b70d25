import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplane_services.gateway.body import _LENGTH_LIMITS, _NOT_FOR_PREFILL, ClientBody
from kvplane_services.gateway.openai_errors import OpenAIError

PARAMS = b'{"do_remote_decode":true,"remote_block_ids":null}'

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
bodies = st.dictionaries(st.text(), json_values, max_size=6).map(
    lambda fields: {**fields, "model": "tiny", "messages": [{"role": "user", "content": "x"}]}
)


def parse(body: dict[str, Any] | bytes, *, chat: bool = True) -> ClientBody:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ClientBody.parse(raw, chat=chat)


def prefill(body: dict[str, Any], *, chat: bool = True, **options: Any) -> dict[str, Any]:
    leg: dict[str, Any] = json.loads(parse(body, chat=chat).prefill_leg(PARAMS, **options))
    return leg


CHAT: dict[str, Any] = {"model": "tiny", "messages": []}


@settings(max_examples=40)
@given(body=bodies, ascii_only=st.booleans(), blanks=st.sampled_from(["", "\n", " \r\n\t"]))
def test_decode_leg_is_the_clients_body(
    body: dict[str, Any], *, ascii_only: bool, blanks: str
) -> None:
    """Every byte of the client's is in the decode leg, which differs in our field alone."""
    raw = (json.dumps(body, ensure_ascii=ascii_only, indent=len(blanks) or None) + blanks).encode(
        errors="surrogatepass"
    )
    leg = parse(raw).decode_leg(PARAMS)

    decoded = json.loads(leg)
    assert decoded.pop("kv_transfer_params") == json.loads(PARAMS)
    if "kv_transfer_params" not in body:
        assert leg.replace(b',"kv_transfer_params":' + PARAMS, b"") == raw
        assert decoded == json.loads(raw)


@settings(max_examples=40)
@given(bodies, json_values)
def test_clients_params_are_replaced(body: dict[str, Any], evil: Any) -> None:
    """What a client sends as kv_transfer_params reaches no leg; other values keep their bytes."""
    sent = {**body, "kv_transfer_params": evil}
    raw = json.dumps(sent).encode()
    mine = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    leg = msgspec.json.decode(parse(raw).decode_leg(PARAMS), type=dict[str, msgspec.Raw])

    assert bytes(leg.pop("kv_transfer_params")) == PARAMS
    mine.pop("kv_transfer_params")
    assert {name: bytes(one) for name, one in leg.items()} == {
        name: bytes(one) for name, one in mine.items()
    }
    assert list(leg) == list(mine)


@settings(max_examples=40)
@given(bodies)
def test_prefill_leg_keeps_what_it_does_not_own(body: dict[str, Any]) -> None:
    """Fields that the gateway does not know reach the prefill leg with the client's bytes."""
    raw = json.dumps(body).encode()
    mine = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    leg = msgspec.json.decode(parse(raw).prefill_leg(PARAMS), type=dict[str, msgspec.Raw])

    owned = {*_NOT_FOR_PREFILL, *_LENGTH_LIMITS, "ignore_eos", "tool_choice"}
    for name in owned:
        leg.pop(name, None)
        mine.pop(name, None)
    assert {name: bytes(one) for name, one in leg.items()} == {
        name: bytes(one) for name, one in mine.items()
    }


def test_escaped_key_is_the_same_key() -> None:
    """A key written with escapes cannot smuggle parameters in."""
    raw = b'{"model":"m","messages":[],"kv_transfer_param\\u0073":{"evil":1}}'

    assert b"evil" not in parse(raw).decode_leg(PARAMS)
    assert b"evil" not in parse(raw).prefill_leg(PARAMS)


def test_repeated_key_cannot_smuggle_params_in() -> None:
    """Of keys that are there twice one is left, and it is ours."""
    raw = b'{"kv_transfer_params":1,"model":"m","messages":[],"kv_transfer_params":2}'

    assert parse(raw).decode_leg(PARAMS).count(b"kv_transfer_params") == 1


def test_without_params_the_decode_leg_is_the_body() -> None:
    """Where the engine is told nothing it gets the very bytes of the client."""
    raw = b'{"model" : "m", "messages":[] } '

    assert parse(raw).decode_leg(None) == raw


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, {"max_tokens": 1}),
        ({"max_tokens": 900}, {"max_tokens": 1}),
        ({"max_completion_tokens": 900}, {"max_completion_tokens": 1}),
        (
            {"max_tokens": None, "max_completion_tokens": 7, "max_output_tokens": 7},
            {"max_tokens": 1, "max_completion_tokens": 1, "max_output_tokens": 1},
        ),
        ({"max_tokens": 0}, {"max_tokens": 1}),
    ],
)
def test_prefill_makes_one_token(sent: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each name of the limit that the client used is 1, and no other one appears."""
    leg = prefill({**CHAT, **sent})

    limits = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    assert {name: leg[name] for name in limits if name in leg} == expected


def test_prefill_has_nothing_that_ends_or_breaks_it() -> None:
    """What delivers, lengthens, ends, describes or constrains an answer stays away."""
    away = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 3,
        "best_of": 3,
        "min_tokens": 50,
        "stop": ["x"],
        "stop_token_ids": [1],
        "logprobs": True,
        "top_logprobs": 5,
        "prompt_logprobs": 1,
        "echo": True,
        "response_format": {"type": "json_object"},
        "structured_outputs": {"choice": ["a"]},
        "guided_json": {},
        "request_id": "mine",
        "use_beam_search": True,
        "thinking_token_budget": 4,
    }
    leg = prefill({**CHAT, **away})

    assert not set(away) & set(leg)
    assert leg["ignore_eos"] is True


def test_prefill_keeps_what_shapes_the_prompt() -> None:
    """Tools, template arguments, media options, salts and adapters are the same on both legs."""
    shaping = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "chat_template": "t",
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low",
        "documents": [{"title": "t", "text": "x"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "add_special_tokens": True,
        "mm_processor_kwargs": {"a": 1},
        "media_io_kwargs": {},
        "truncate_prompt_tokens": 12,
        "cache_salt": "s",
        "priority": 3,
        "vllm_xargs": {"a": 1},
    }
    leg = prefill({**CHAT, **shaping})

    assert {name: leg[name] for name in shaping} == shaping


@pytest.mark.parametrize(
    ("sent", "leg"),
    [
        ("required", "auto"),
        ({"type": "function", "function": {"name": "f"}}, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        (None, None),
    ],
)
def test_tool_choice_leaves_the_prompt_alone(sent: Any, leg: Any) -> None:
    """A forced tool becomes `auto`, which prints the same tools; `none` may print none."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    got = prefill({**CHAT, "tools": tools, "tool_choice": sent})

    assert got["tool_choice"] == leg
    assert got["tools"] == tools


def test_operator_can_keep_constraints_on_prefill() -> None:
    """Models whose template prints them get them on both legs."""
    body = {**CHAT, "tool_choice": "required", "response_format": {"type": "json_object"}}
    leg = prefill(body, keeps=frozenset({"tool_choice", "response_format"}))

    assert leg["tool_choice"] == "required"
    assert leg["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("prompt", "one"),
    [
        ("text", True),
        ([1, 2], True),
        ([], True),
        ([[1, 2]], False),
        (["a"], False),
        (["a", "b"], False),
    ],
)
def test_lists_of_prompts_are_several_sequences(prompt: Any, *, one: bool) -> None:
    """Token ids are one prompt; a list of texts or of lists may be several."""
    assert parse({"model": "m", "prompt": prompt}, chat=False).one_sequence is one


@pytest.mark.parametrize(
    ("prompt", "one"),
    [(b'[ \n\t"a"]', False), (b"[\r\n[1]]", False), (b"[ 1, 2]", True), (b'"["', True)],
)
def test_lists_of_prompts_however_they_are_written(prompt: bytes, *, one: bool) -> None:
    """Blanks in a list change nothing."""
    body = parse(b'{"model":"m","prompt": ' + prompt + b"}", chat=False)

    assert body.one_sequence is one


@pytest.mark.parametrize(
    ("field", "value", "one"), [("n", 1, True), ("n", 2, False), ("best_of", 3, False)]
)
def test_several_choices_are_several_sequences(field: str, value: int, *, one: bool) -> None:
    """Choices that would each read the blocks that the first read gives away are not split."""
    body = parse({"model": "m", "prompt": "text", field: value}, chat=False)

    assert body.one_sequence is one


@pytest.mark.parametrize(
    ("fields", "chat", "asks"),
    [
        ({}, True, False),
        ({"prompt_logprobs": 0}, True, True),
        ({"prompt_logprobs": None}, True, False),
        ({"echo": True}, True, True),
        ({"echo": True}, False, False),
        ({"echo": True, "logprobs": 1}, False, True),
        ({"echo": False, "logprobs": 1}, False, False),
    ],
)
def test_which_turns_ask_about_the_prompt(
    fields: dict[str, Any], *, chat: bool, asks: bool
) -> None:
    """Where vLLM computes logprobs of the prompt, one engine has to compute all of it."""
    body = {"model": "m", "messages": [], "prompt": "x", **fields}

    assert parse(body, chat=chat).asks_about_prompt is asks


def test_max_output_tokens_by_any_name() -> None:
    """The limit is found under each of its names; nonsense counts as unknown."""
    assert parse({**CHAT, "max_completion_tokens": 9}).max_output_tokens == 9
    assert parse({**CHAT, "max_tokens": 9}).max_output_tokens == 9
    assert parse({**CHAT, "max_tokens": "9"}).max_output_tokens == 0
    assert parse({**CHAT, "max_tokens": -3}).max_output_tokens == 0
    assert parse(CHAT).max_output_tokens == 0


@settings(max_examples=40)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_parsed_or_refused(raw: bytes) -> None:
    """No body makes parsing fail in another way than with an error for the client."""
    with contextlib.suppress(OpenAIError):
        assert parse(raw).raw == raw
