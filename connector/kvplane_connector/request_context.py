"""What of a vLLM request, beside its tokens, shapes the KV of its blocks."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, overload

from kvplane.digest import Medium, context_of
from kvplane_connector.versions import has_embeddings


class LeadingTokens(Sequence[int]):
    """The first tokens of a request that is over, without a copy of them.

    A copy takes hold of each token, which of a long history costs vLLM's step loop most of a
    millisecond.

    Args:
        token_ids: All of them.
        count: How many are meant; no more than there are.

    """

    def __init__(self, token_ids: Sequence[int], count: int) -> None:
        self._token_ids = token_ids
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return islice(self._token_ids, self._count)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return self._token_ids[: self._count][index]


def is_provable(request: Any) -> bool:
    """Whether the request's tokens tell all of its prompt; embeddings in it do not."""
    return request.prompt_token_ids is not None and not has_embeddings(request)


def context_for(request: Any) -> bytes:
    """What shapes the KV of all tokens of a request; start of their digest chain."""
    adapter = request.lora_request.lora_name if request.lora_request is not None else ""
    return context_of(adapter=adapter, cache_salt=request.cache_salt or "")


def media_of(request: Any) -> tuple[Medium, ...]:
    """What stands behind some tokens of a request, by content.

    vLLM's identifier is a hash of the content, or what the client says of it and answers for.
    """
    if not request.mm_features:
        return ()
    return tuple(
        Medium(one.mm_position.offset, one.mm_position.length, one.identifier)
        for one in request.mm_features
    )
