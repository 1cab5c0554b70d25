"""Digest chains: proof of which tokens a set of KV blocks holds.

The KV of token i depends on every token up to i and on what else shapes attention
(adapter, cache salt, media). A chain commits to all of it: entry i is the digest of
everything up to the end of chunk i of `CHUNK_TOKENS` token ids, media where they begin. A
reader compares the entries with digests of its own prompt and finds how many leading tokens
the blocks and the prompt share; whole chunks only, except that the last entry covers the
incomplete chunk at the end. An entry proves all before it, so that a few are enough to look at.

Not promised: secrecy. A digest of few tokens can be guessed.
"""

import functools
import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

ALGORITHM = "blake2b-128/2"
CHUNK_TOKENS = 64
_DIGEST_BYTES = 16
_TOKEN_BYTES = 4
# Stands before the digest of a medium. No vocabulary has a token of this id.
_MEDIUM = b"\xff" * _TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class DigestChain:
    """Digests over `tokens` token ids in chunks of `chunk_tokens`, first to last."""

    tokens: int
    digests: tuple[bytes, ...]
    chunk_tokens: int = CHUNK_TOKENS
    algorithm: str = ALGORITHM


@dataclass(frozen=True, slots=True)
class Medium:
    """An image, audio or video item of a prompt.

    Attributes:
        offset: Index of the first token that stands for it.
        length: Number of those tokens.
        identifier: Hash of its content.

    """

    offset: int
    length: int
    identifier: str

    def digest(self) -> bytes:
        """A digest of all of it."""
        text = f"{self.offset}+{self.length}:{self.identifier}"
        return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


# Few differ, and they are asked for in vLLM's step loop.
@functools.lru_cache(maxsize=1024)
def context_of(*, adapter: str = "", cache_salt: str = "") -> bytes:
    """The start of a chain: what shapes the KV of every token.

    Args:
        adapter: LoRA adapter name; empty for the base model.
        cache_salt: The request's `cache_salt`; empty if it has none.

    """
    digest = hashlib.blake2b(ALGORITHM.encode(), digest_size=_DIGEST_BYTES)
    for part in (adapter, cache_salt):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def chain_of(token_ids: Sequence[int], context: bytes, media: Sequence[Medium] = ()) -> DigestChain:
    """The chain over all of `token_ids`, whose ids must be below 2**32 - 1.

    Args:
        token_ids: The tokens.
        context: What shapes the KV of all of them, as `context_of` has it.
        media: What stands behind some of them; items that begin behind all are left out.

    """
    message = _Message(token_ids, media, CHUNK_TOKENS)
    digest = hashlib.blake2b(context, digest_size=_DIGEST_BYTES)
    digests: list[bytes] = []
    start = 0
    for end in message.ends:
        digest.update(message.content[start:end])
        digests.append(digest.copy().digest())
        start = end
    return DigestChain(tokens=len(token_ids), digests=tuple(digests))


def common_prefix(
    chain: DigestChain, token_ids: Sequence[int], context: bytes, media: Sequence[Medium] = ()
) -> int:
    """How many leading tokens of a prompt are provably those of `chain`.

    A chain of an unknown algorithm or a malformed one proves nothing: 0.

    Args:
        chain: The proof.
        token_ids: The prompt.
        context: What shapes the KV of the whole prompt, as `context_of` has it.
        media: What stands behind some of the prompt's tokens.

    """
    if chain.algorithm != ALGORITHM or chain.chunk_tokens <= 0 or chain.tokens <= 0:
        return 0
    if len(chain.digests) != -(-chain.tokens // chain.chunk_tokens):
        return 0
    message = _Message(token_ids[: chain.tokens], media, chain.chunk_tokens)
    proved, start = 0, 0
    digest = hashlib.blake2b(context, digest_size=_DIGEST_BYTES)
    disproved = len(message.ends) + 1
    if len(token_ids) < chain.tokens and len(token_ids) % chain.chunk_tokens:
        # The prompt ends within a chunk, of which it has another part.
        disproved -= 1
    # Most prompts go on where the chain ends; where the others part is found by halves.
    entry = disproved - 1
    while entry > proved:
        ahead = digest.copy()
        ahead.update(message.content[start : message.ends[entry - 1]])
        if ahead.digest() == chain.digests[entry - 1]:
            proved, start, digest = entry, message.ends[entry - 1], ahead
        else:
            disproved = entry
        entry = (proved + disproved) // 2
    return min(proved * chain.chunk_tokens, chain.tokens)


class _Message:
    """What chains are made over: tokens, and media before the chunks that they begin in.

    Attributes:
        content: All of it.
        ends: Where in `content` each chunk ends.

    """

    def __init__(
        self, token_ids: Sequence[int], media: Sequence[Medium], chunk_tokens: int
    ) -> None:
        packed = array("I", token_ids)
        if sys.byteorder == "big":
            packed.byteswap()
        content = packed.tobytes()
        step = chunk_tokens * _TOKEN_BYTES
        self.ends = [*range(step, len(content), step), len(content)] if content else []
        begun = [one for one in media if 0 <= one.offset < len(token_ids)]
        if begun:
            content = self._with_media(content, begun, chunk_tokens)
        self.content = memoryview(content)

    def _with_media(self, content: bytes, media: Sequence[Medium], chunk_tokens: int) -> bytes:
        of_chunk: dict[int, bytes] = {}
        for one in sorted(media, key=lambda item: item.offset):
            chunk = one.offset // chunk_tokens
            of_chunk[chunk] = of_chunk.get(chunk, b"") + _MEDIUM + one.digest()
        parts: list[bytes] = []
        ends: list[int] = []
        start, added = 0, 0
        for chunk, end in enumerate(self.ends):
            if before := of_chunk.get(chunk):
                parts.append(before)
                added += len(before)
            parts.append(content[start:end])
            ends.append(end + added)
            start = end
        self.ends = ends
        return b"".join(parts)
