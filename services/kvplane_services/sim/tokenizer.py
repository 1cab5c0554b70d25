"""A tokenizer whose every generated token's text encodes back to that token.

A token is one byte of UTF-8, or one of a few control tokens that no text can produce. The
model generates printable ASCII only, so a reply that comes back as history has the tokens
that were generated, which is what makes its KV reusable.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvplane_services.errors import InvalidRequest

_BYTES = 256
IM_START = 256
IM_END = 257
VOCABULARY = 258

# What ends a reply, as in the chat models whose template this is.
EOS = IM_END


def encode(text: str) -> list[int]:
    """The tokens of a text; control tokens never come from text."""
    return list(text.encode())


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens; control tokens have none, broken UTF-8 is replaced."""
    return bytes(token for token in tokens if token < _BYTES).decode(errors="replace")


def encode_chat(
    messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
) -> list[int]:
    """The prompt of a chat, up to where the assistant's reply begins.

    Raises:
        InvalidRequest: A message has no role, or content that is not text.

    """
    tokens: list[int] = []
    if tools:
        tokens += _turn("system", "# Tools\n" + _compact(list(tools)))
    for message in messages:
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidRequest("every message needs a role")
        text = _text(message.get("content"))
        calls = message.get("tool_calls")
        if calls:
            text += "\n# Calls\n" + _compact(calls)
        tokens += _turn(role, text)
    return [*tokens, IM_START, *encode("assistant\n")]


def _turn(role: str, text: str) -> list[int]:
    return [IM_START, *encode(f"{role}\n{text}"), IM_END, *encode("\n")]


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest("content must be a string or a list of text parts")
    texts: list[str] = []
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise InvalidRequest("the simulated engine reads text parts only")
        texts.append(part["text"])
    return "".join(texts)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
