"""What of a vLLM request, beside its tokens, shapes the KV of its blocks."""

from typing import Any

from kvplane.digest import context_of


def is_provable(request: Any) -> bool:
    """Whether the request's tokens tell all of its prompt; embeddings in it do not."""
    return (
        request.prompt_token_ids is not None
        and getattr(request, "prompt_embeds", None) is None
        and getattr(request, "prompt_is_token_ids", None) is None
    )


def context_for(request: Any, tokens: int) -> bytes:
    """The start of the digest chain over the first `tokens` tokens of a request.

    Media behind those tokens are left out: a turn that adds an image shares its history
    with the turn before.
    """
    adapter = request.lora_request.lora_name if request.lora_request is not None else ""
    media = [
        f"{one.identifier}@{one.mm_position.offset}+{one.mm_position.length}"
        for one in request.mm_features or ()
        if one.mm_position.offset < tokens
    ]
    return context_of(adapter=adapter, cache_salt=request.cache_salt or "", media=media)
