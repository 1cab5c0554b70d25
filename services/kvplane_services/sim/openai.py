"""OpenAI requests as vLLM takes them, and refusals in its words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kvplane.digest import context_of
from kvplane_services.errors import InvalidRequest
from kvplane_services.sim.request import Sampling
from kvplane_services.sim.tokenizer import VOCABULARY, encode, encode_chat

_DEFAULT_COMPLETION_TOKENS = 16


class BadRequest(Exception):
    """What a client must change; `status`, `kind` and `param` as vLLM has them."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Common(msgspec.Struct, kw_only=True):
    """What both endpoints take; other fields are accepted and have no effect."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    n: int | None = 1
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    cache_salt: str | None = None
    return_token_ids: bool | None = False
    kv_transfer_params: dict[str, Any] | None = None


class ChatBody(_Common, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    logprobs: bool | None = False


class CompletionBody(_Common, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request that the engine can take."""

    prompt: list[int]
    context: bytes
    sampling: Sampling
    params: Mapping[str, Any] | None
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool


def require_json(content_type: str) -> None:
    """Refuses bodies that are not declared as JSON, as vLLM does.

    Raises:
        BadRequest: It is another type.

    """
    if content_type != "application/json":
        raise BadRequest(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            kind="Bad Request",
        )


def parse(
    raw: bytes, kind: type[ChatBody] | type[CompletionBody], *, model: str, max_model_len: int
) -> Parsed:
    """Reads the body of a request.

    Raises:
        BadRequest: It cannot be served; the message says why.

    """
    try:
        body = msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"1 validation error:\n  {error}", kind="Bad Request") from error
    if body.model not in (None, "", model):
        raise BadRequest(
            f"The model `{body.model}` does not exist. Valid aliases: {model}.",
            status=404,
            kind="NotFoundError",
            param="model",
        )
    _refuse_unsupported(body)
    prompt = _prompt(body)
    limit = body.max_tokens
    if isinstance(body, ChatBody):
        limit = body.max_completion_tokens if body.max_completion_tokens is not None else limit
    elif limit is None:
        limit = _DEFAULT_COMPLETION_TOKENS
    _check_length(len(prompt), limit, max_model_len)
    room = max_model_len - len(prompt)
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    options = body.stream_options or StreamOptions()
    return Parsed(
        prompt=prompt,
        context=context_of(cache_salt=body.cache_salt or ""),
        sampling=Sampling(
            max_tokens=room if limit is None else min(limit, room),
            min_tokens=body.min_tokens,
            ignore_eos=body.ignore_eos,
            stop=tuple(filter(None, stop)),
        ),
        params=body.kv_transfer_params,
        model=model,
        stream=bool(body.stream),
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage_stats,
        token_ids=bool(body.return_token_ids),
    )


def _refuse_unsupported(body: ChatBody | CompletionBody) -> None:
    if body.n not in (None, 1):
        raise BadRequest("The simulated engine gives one choice: leave n out", param="n")
    if body.logprobs not in (None, False):
        raise BadRequest("The simulated engine has no logprobs: leave them out", param="logprobs")
    if isinstance(body, CompletionBody) and body.echo:
        raise BadRequest("The simulated engine does not echo: leave echo out", param="echo")
    if body.stream_options is not None and not body.stream:
        raise BadRequest(
            "Stream options can only be defined when `stream=True`.", param="stream_options"
        )


def _prompt(body: ChatBody | CompletionBody) -> list[int]:
    if isinstance(body, ChatBody):
        if not body.messages:
            raise BadRequest("messages must not be empty", param="messages")
        try:
            return encode_chat(body.messages, tools=body.tools or ())
        except InvalidRequest as error:
            raise BadRequest(error.message, param="messages") from error
    prompt: Any = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    tokens = encode(prompt) if isinstance(prompt, str) else prompt
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise BadRequest(
            "The simulated engine takes one prompt a request, a text or token ids", param="prompt"
        )
    if not tokens:
        raise BadRequest("The decoder prompt cannot be empty", param="prompt")
    if not all(0 <= token < VOCABULARY for token in tokens):
        raise BadRequest(f"Token ids must be below {VOCABULARY}", param="prompt")
    return list(tokens)


def _check_length(prompt: int, limit: int | None, max_model_len: int) -> None:
    if limit is not None and limit < 1:
        raise BadRequest(f"max_tokens must be at least 1, got {limit}.", param="max_tokens")
    if limit is not None and limit > max_model_len:
        raise BadRequest(
            f"max_tokens={limit} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            param="max_tokens",
        )
    if prompt >= max_model_len:
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, your "
            f"prompt contains {prompt} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
