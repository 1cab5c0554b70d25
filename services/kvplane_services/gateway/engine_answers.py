"""What the gateway reads of engines' answers: never the text, only what it counts and hands on."""

from dataclasses import dataclass

import aiohttp
import msgspec


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    kv_transfer_params: dict[str, msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """A complete answer that did not stream; `params` are its `kv_transfer_params`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    params: dict[str, msgspec.Raw] | None = None

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


class _ErrorAnswer(msgspec.Struct):
    error: dict[str, msgspec.Raw] | str


def is_openai_error(body: bytes) -> bool:
    """Whether a body is an error in OpenAI's shape."""
    try:
        return isinstance(msgspec.json.decode(body, type=_ErrorAnswer).error, dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def merged(*layers: bytes | dict[str, msgspec.Raw]) -> bytes:
    """JSON objects laid over each other; values keep their bytes, later ones win."""
    fields: dict[str, msgspec.Raw] = {}
    for layer in layers:
        if isinstance(layer, bytes):
            fields.update(msgspec.json.decode(layer or b"{}", type=dict[str, msgspec.Raw]))
        else:
            fields.update(layer)
    return msgspec.json.encode(fields)


def streams(response: aiohttp.ClientResponse) -> bool:
    """Whether an answer is a stream of events."""
    return response.content_type == "text/event-stream"
