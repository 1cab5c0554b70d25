"""OpenAI answers in the shape that vLLM gives them."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvplane_services.sim.request import FinishReason


class Answer:
    """Builds the JSON of one request's answer, whole or in chunks.

    Args:
        chat: Which endpoint.
        request_id: The answer's id.
        model: The model's name.
        created: Seconds since 1970.

    """

    def __init__(self, *, chat: bool, request_id: str, model: str, created: int) -> None:
        self._chat = chat
        self._head = {"id": request_id, "created": created, "model": model}

    def whole(
        self,
        text: str,
        *,
        finish_reason: FinishReason,
        stop_reason: str | None,
        usage: Mapping[str, Any],
        params: Mapping[str, Any] | None,
        token_ids: Sequence[int] | None = None,
        prompt_token_ids: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """The answer that does not stream."""
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["message"] = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            }
        else:
            choice["text"] = text
        choice |= {
            "logprobs": None,
            "finish_reason": finish_reason.value,
            "stop_reason": stop_reason,
            "token_ids": token_ids,
        }
        if not self._chat:
            choice["prompt_token_ids"] = prompt_token_ids
        head: dict[str, Any] = {**self._head}
        if self._chat:
            head["prompt_token_ids"] = prompt_token_ids
        return {
            **head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage,
            "prompt_logprobs": None,
            "kv_transfer_params": params,
        }

    def opening(self, *, prompt_token_ids: Sequence[int] | None = None) -> dict[str, Any] | None:
        """The first chunk of a stream, which names the role; None for plain completions."""
        if not self._chat:
            return None
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._chunk([choice]), "prompt_token_ids": prompt_token_ids}

    def chunk(
        self,
        text: str,
        *,
        finish_reason: FinishReason | None = None,
        stop_reason: str | None = None,
        token_ids: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """A chunk of a stream."""
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
        choice["logprobs"] = None
        choice["finish_reason"] = finish_reason.value if finish_reason else None
        if finish_reason or not self._chat:
            choice["stop_reason"] = stop_reason
        choice["token_ids"] = token_ids
        return self._chunk([choice])

    def usage_chunk(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """The last chunk of a stream that asked for its usage."""
        return {**self._chunk([]), "usage": usage}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices}


def usage(*, prompt: int, completion: int, cached: int | None) -> dict[str, Any]:
    """`usage`; with `cached`, its details as vLLM prints them if told to."""
    value: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    if cached is not None:
        value["prompt_tokens_details"] = {"cached_tokens": cached}
    return value


def models(model: str, *, max_model_len: int, created: int) -> dict[str, Any]:
    """The answer of GET /v1/models."""
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "kvplane-sim",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
    }
    return {"object": "list", "data": [card]}
