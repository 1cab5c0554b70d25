"""What stands in for a proof of tokens, for engines that give none.

An engine with the stock connector does not say which tokens its blocks hold. Where an operator
trusts its history all the same, the gateway sees to it that a turn continues the retained one: all
that shapes the prompt is the same, message by message, up to and including the answer.

Compared are bytes, so that a doubt costs a recompute: a client that prints its messages otherwise
than before does not get reuse. An answer is comparable only if it is plain text that the model
ended by itself or that its length limit ended; the tokens of tool calls, of reasoning and of what
a stop string cut off are not in the text that comes back. What is left to trust: that the chat
template prints an answer as it was generated, and that its text makes the same tokens again.
"""

import hashlib
from typing import Any

import msgspec

from kvplane_services.gateway.body import ClientBody
from kvplane_services.router.model import Decision

_DIGEST_BYTES = 16
# Fields that shape the answer, or say who asks, and not the prompt. All others count, known or not.
_NOT_IN_PROMPT = frozenset(
    {
        "model",
        "messages",
        "kv_transfer_params",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "n",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "request_id",
        "priority",
        "user",
        "metadata",
        "store",
    }
)


class _Choice(msgspec.Struct):
    message: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class TrustedModels:
    """Models of which some engine's history is trusted, as the router's decisions tell.

    Only for those is a digest made of each turn: it costs a pass over the messages.
    """

    def __init__(self) -> None:
        self._models: set[str] = set()

    def note(self, decision: Decision) -> None:
        """Takes in what a decision says of the engine that decodes."""
        fixed = decision.decode.fixed_retention
        if fixed is not None and fixed.trust_history:
            self._models.add(decision.session_key.model)

    def __contains__(self, model: object) -> bool:
        return model in self._models


def history_digest(body: ClientBody) -> bytes:
    """The digest of what a turn continues: all up to the last message of the assistant.

    Empty if there is no such message, or if it is more than plain text.
    """
    messages = _messages(body)
    for number in range(len(messages) - 1, -1, -1):
        message = _decoded(messages[number])
        if message.get("role") == "assistant":
            return _digest(body, messages[:number], _plain_text(message))
    return b""


def continued_digest(body: ClientBody, answer: bytes) -> bytes:
    """What `history_digest` of a turn is that continues this one, given the engine's answer.

    Empty if the tokens of the answer cannot be told from its text.
    """
    messages = _messages(body)
    try:
        choices = msgspec.json.decode(answer, type=_Answer).choices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    if len(choices) != 1 or not messages:
        return b""
    [choice] = choices
    if choice.finish_reason not in ("stop", "length") or choice.stop_reason is not None:
        return b""
    return _digest(body, messages, _plain_text(choice.message or {}))


def _digest(body: ClientBody, before: list[msgspec.Raw], text: str | None) -> bytes:
    if text is None:
        return b""
    chain = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name in sorted(body.fields.keys() - _NOT_IN_PROMPT):
        _add(chain, name.encode(errors="surrogatepass"))
        _add(chain, bytes(body.fields[name]))
    # No name of a field is a single zero byte.
    _add(chain, b"\0")
    for message in before:
        _add(chain, bytes(message))
    _add(chain, b"\0")
    _add(chain, text.encode(errors="surrogatepass"))
    return chain.digest()


def _add(chain: "hashlib.blake2b", part: bytes) -> None:
    # With its length, so that it is clear where each part ends.
    chain.update(len(part).to_bytes(8, "big"))
    chain.update(part)


def _plain_text(message: dict[str, Any]) -> str | None:
    """The text of an assistant's message that is nothing else."""
    text = message.get("content")
    others = {
        name: value for name, value in message.items() if name not in ("role", "content") and value
    }
    return text if isinstance(text, str) and not others else None


def _messages(body: ClientBody) -> list[msgspec.Raw]:
    messages = body.fields.get("messages") if body.chat else None
    if messages is None:
        return []
    try:
        return msgspec.json.decode(messages, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return []


def _decoded(message: msgspec.Raw) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
