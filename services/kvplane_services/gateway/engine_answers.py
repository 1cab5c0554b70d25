"""What the gateway reads of engines' answers: never the text, only what it counts and hands on."""

import enum
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
import msgspec

# `kv_transfer_params`, each value in the engine's own bytes.
Params = dict[str, msgspec.Raw]


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    kv_transfer_params: Params | None = None


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """A complete answer that did not stream; `params` are its `kv_transfer_params`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    params: Params | None = None

    @classmethod
    def parse(cls, body: bytes) -> "EngineAnswer":
        """Reads an answer.

        Raises:
            ValueError: It is not what an OpenAI-compatible engine answers.

        """
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"the answer is not understood: {error}") from error
        usage = answer.usage or _Usage()
        details = usage.prompt_tokens_details or _PromptDetails()
        return cls(
            prompt_tokens=usage.prompt_tokens or 0,
            cached_tokens=details.cached_tokens or 0,
            output_tokens=usage.completion_tokens or 0,
            params=answer.kv_transfer_params or None,
        )


class Verdict(enum.Enum):
    """What an engine's status says of a leg."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"


def verdict_of(response: aiohttp.ClientResponse) -> Verdict:
    """Refused is what repeating elsewhere would not help; a redirect is no answer."""
    if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
        return Verdict.ANSWERED
    if HTTPStatus.BAD_REQUEST <= response.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return Verdict.REFUSED
    return Verdict.FAILED


def merged(*layers: bytes | Params) -> bytes:
    """JSON objects laid over each other; values keep their bytes, later ones win."""
    fields: Params = {}
    for layer in layers:
        if isinstance(layer, bytes):
            fields.update(msgspec.json.decode(layer or b"{}", type=Params))
        else:
            fields.update(layer)
    return msgspec.json.encode(fields)


def streams(response: aiohttp.ClientResponse) -> bool:
    """Whether an answer is a stream of events."""
    return response.content_type == "text/event-stream"
