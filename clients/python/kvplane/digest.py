"""Digest chains: proof of which tokens a set of KV blocks holds.

The KV of token i depends on every token up to i and on what else shapes attention
(adapter, cache salt, media). A chain commits to all of it: entry i is the digest of
entry i - 1 and of the next `CHUNK_TOKENS` token ids. A reader that computes the chain of
its own prompt finds how many leading tokens the blocks and the prompt share; whole
chunks only, except that the last entry covers the incomplete chunk at the end.

Not promised: secrecy. A digest of few tokens can be guessed.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

ALGORITHM = "blake2b-128/1"
CHUNK_TOKENS = 64
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class DigestChain:
    """Digests over `tokens` token ids in chunks of `chunk_tokens`, first to last."""

    tokens: int
    digests: tuple[bytes, ...]
    chunk_tokens: int = CHUNK_TOKENS
    algorithm: str = ALGORITHM


def context_of(*, adapter: str = "", cache_salt: str = "", media: Sequence[str] = ()) -> bytes:
    """The start of a chain: everything but the tokens that shapes their KV.

    Args:
        adapter: LoRA adapter name; empty for the base model.
        cache_salt: The request's `cache_salt`; empty if it has none.
        media: One entry for each image, audio or video item in prompt order, its content
            hash and position.

    """
    digest = hashlib.blake2b(ALGORITHM.encode(), digest_size=_DIGEST_BYTES)
    for part in (adapter, cache_salt, *media):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def chain_of(token_ids: Sequence[int], context: bytes) -> DigestChain:
    """The chain over all of `token_ids`. Token ids must fit in 32 bits."""
    packed = _packed(token_ids)
    step = CHUNK_TOKENS * 4
    digests: list[bytes] = []
    previous = context
    for start in range(0, len(packed), step):
        previous = _link(previous, packed[start : start + step])
        digests.append(previous)
    return DigestChain(tokens=len(token_ids), digests=tuple(digests))


def common_prefix(chain: DigestChain, token_ids: Sequence[int], context: bytes) -> int:
    """How many leading tokens `token_ids` provably shares with the tokens of `chain`.

    A chain of an unknown algorithm or a malformed one proves nothing: 0.
    """
    if chain.algorithm != ALGORITHM or chain.chunk_tokens <= 0:
        return 0
    if len(chain.digests) != -(-chain.tokens // chain.chunk_tokens):
        return 0
    packed = _packed(token_ids[: chain.tokens])
    previous = context
    proved = 0
    for digest in chain.digests:
        end = min(proved + chain.chunk_tokens, chain.tokens)
        if end > len(token_ids):
            break
        previous = _link(previous, packed[proved * 4 : end * 4])
        if previous != digest:
            break
        proved = end
    return proved


def _packed(token_ids: Sequence[int]) -> bytes:
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _link(previous: bytes, chunk: bytes) -> bytes:
    return hashlib.blake2b(previous + chunk, digest_size=_DIGEST_BYTES).digest()
