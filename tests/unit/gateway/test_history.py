"""What stands in for a proof where an engine gives none."""

import json
from typing import Any

import pytest

from kvplane_services.gateway.body import ClientBody
from kvplane_services.gateway.history import continued_digest, history_digest

SYSTEM = {"role": "system", "content": "You are brief."}
ASKED = {"role": "user", "content": "Where?"}
ANSWER = {"role": "assistant", "content": "In line 3."}
NEXT = {"role": "user", "content": "And why?"}
TOOLS = [{"type": "function", "function": {"name": "find"}}]


def chat(*messages: dict[str, Any], **fields: Any) -> ClientBody:
    body = {"model": "m", "messages": list(messages)} | fields
    return ClientBody.parse(json.dumps(body).encode(), chat=True)


def answer(*, finish: str = "stop", stop: object = None, **message: Any) -> bytes:
    told: dict[str, Any] = {"role": "assistant", "content": "In line 3.", "tool_calls": []}
    choice = {
        "index": 0,
        "message": told | {"refusal": None} | message,
        "finish_reason": finish,
        "stop_reason": stop,
    }
    return json.dumps({"id": "chatcmpl-1", "choices": [choice], "usage": {}}).encode()


RETAINED = continued_digest(chat(SYSTEM, ASKED, temperature=0), answer())


@pytest.mark.parametrize(
    "turn",
    [
        chat(SYSTEM, ASKED, ANSWER, NEXT),
        chat(SYSTEM, ASKED, ANSWER),
        chat(SYSTEM, ASKED, ANSWER, NEXT, {"role": "tool", "content": "x"}),
        chat(SYSTEM, ASKED, {**ANSWER, "refusal": None, "tool_calls": []}, NEXT),
        chat(SYSTEM, ASKED, ANSWER, NEXT, stream=True, max_tokens=7, temperature=1, stop=["."]),
    ],
)
def test_a_turn_that_continues_is_known(turn: ClientBody) -> None:
    """Whatever comes after the answer, and however the next one is to be made."""
    assert RETAINED
    assert history_digest(turn) == RETAINED


@pytest.mark.parametrize(
    "turn",
    [
        chat(ASKED, ANSWER, NEXT),
        chat({**SYSTEM, "content": "You are long."}, ASKED, ANSWER, NEXT),
        chat(SYSTEM, {**ASKED, "content": "Where ?"}, ANSWER, NEXT),
        chat(SYSTEM, {**ASKED, "name": "u"}, ANSWER, NEXT),
        chat(ASKED, SYSTEM, ANSWER, NEXT),
        chat(SYSTEM, ASKED, {**ANSWER, "content": "In line 4."}, NEXT),
        chat(SYSTEM, ASKED, ANSWER, NEXT, ANSWER, NEXT),
        chat(SYSTEM, ASKED, ANSWER, NEXT, tools=TOOLS),
        chat(SYSTEM, ASKED, ANSWER, NEXT, chat_template_kwargs={"enable_thinking": False}),
        chat(SYSTEM, ASKED, ANSWER, NEXT, some_new_field=1),
    ],
)
def test_a_turn_that_does_not_is_another(turn: ClientBody) -> None:
    """Edited, cut, reordered, a rewind, other tools, a field that nobody knows."""
    assert history_digest(turn) != RETAINED


@pytest.mark.parametrize(
    "turn",
    [
        chat(SYSTEM, ASKED),
        chat(),
        chat(SYSTEM, ASKED, {**ANSWER, "reasoning_content": "Hm."}, NEXT),
        chat(SYSTEM, ASKED, {**ANSWER, "tool_calls": [{"id": "1"}]}, NEXT),
        chat(SYSTEM, ASKED, {"role": "assistant", "content": [{"type": "text"}]}, NEXT),
        ClientBody.parse(b'{"model":"m","prompt":"Where?"}', chat=False),
        ClientBody.parse(b'{"model":"m","messages":"Where?"}', chat=True),
        ClientBody.parse(b'{"model":"m","messages":[1,"a",null]}', chat=True),
    ],
)
def test_what_cannot_be_compared_has_no_digest(turn: ClientBody) -> None:
    """No answer yet, one that is more than text, and no chat at all."""
    assert history_digest(turn) == b""


@pytest.mark.parametrize(
    "told",
    [
        answer(reasoning_content="Hm."),
        answer(reasoning="Hm."),
        answer(tool_calls=[{"id": "1", "function": {"name": "find", "arguments": "{}"}}]),
        answer(content=None),
        answer(finish="tool_calls"),
        answer(finish="content_filter"),
        answer(stop="."),
        answer(stop=5),
        b'{"choices": []}',
        b'{"choices": [{"finish_reason": "stop"}]}',
        json.dumps({"choices": json.loads(answer())["choices"] * 2}).encode(),
        b"{}",
        b"no json",
    ],
)
def test_an_answer_whose_tokens_are_not_its_text(told: bytes) -> None:
    """Reasoning, tool calls, and what a stop string cut off do not come back as they were made."""
    assert continued_digest(chat(SYSTEM, ASKED), told) == b""


def test_parts_do_not_run_into_each_other() -> None:
    """The same bytes, parted otherwise, are another history."""
    one = chat({"role": "user", "content": "ab"}, ANSWER, a="x")
    two = chat({"role": "user", "content": "ab"}, ANSWER, ax="")
    assert history_digest(one) != history_digest(two)
