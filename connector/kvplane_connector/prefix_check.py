"""Cuts a handle to the tokens that its blocks provably share with a prompt.

Nothing else guards against wrong KV: a router may guess the session wrongly, a client may
have edited its history. Cutting inside a block is exact, because the reader computes
from there on and overwrites the rest.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvplane.digest import DigestChain, Medium, common_prefix
from kvplane_connector.read_fence import read_expiry
from kvplane_connector.usable_handle import are_block_ids

# vLLM's stand-in for blocks that nobody needs, such as those that a window has passed.
_NO_BLOCK = 0


class Outcome(enum.Enum):
    """How much of a handle is read, and why not more."""

    WHOLE = "the whole history is the same"
    CUT = "the history differs from there on"
    DIFFERENT = "the history shares no leading tokens with what the blocks hold"
    UNPROVED = "the handle does not prove which tokens its blocks hold"
    UNFENCED = "the handle does not say until when its blocks are kept"
    SHORT = "the handle does not name every block that these tokens need"
    UNPROVABLE = "the prompt is not made of tokens alone"

    @property
    def label(self) -> str:
        """A name for metrics."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Cut:
    """What may be read: `tokens` of the `offered` ones, from `block_ids` per cache group."""

    outcome: Outcome
    offered: int
    tokens: int = 0
    block_ids: Sequence[Sequence[int]] = ()


def cut_handle(
    params: dict[str, Any],
    chain: DigestChain | None,
    prompt: Sequence[int],
    context: bytes,
    block_size: int,
    media: Sequence[Medium] = (),
) -> Cut:
    """What of the blocks in a handle's `params` may be read for `prompt`.

    Args:
        params: The handle: vLLM's `kv_transfer_params`.
        chain: The proof in it.
        prompt: Token ids of the prompt.
        context: What shapes the KV of the whole prompt.
        block_size: Tokens per block at the engine that holds the blocks.
        media: What stands behind some of the prompt's tokens.

    """
    offered = offered_tokens(params)
    if chain is None:
        return Cut(Outcome.UNPROVED, offered)
    if read_expiry(params.get("remote_blocks_expiry_time")) is None:
        return Cut(Outcome.UNFENCED, offered)
    groups: Any = params.get("remote_block_ids")
    if not are_block_ids(groups) or block_size <= 0:
        return Cut(Outcome.SHORT, offered)
    shared = min(common_prefix(chain, prompt, context, media), offered)
    if shared == 0:
        return Cut(Outcome.DIFFERENT, offered)
    blocks = -(-shared // block_size)
    whole = shared == offered
    if not whole and not _is_all_there(groups, -(-offered // block_size), blocks):
        return Cut(Outcome.SHORT, offered)
    # Blocks behind the tokens would shift the reader, which aligns at the end. Of several groups,
    # whose blocks may differ in size, the owner has left them out.
    end = None if whole and len(groups) > 1 else blocks
    cut = [list(group[:end]) for group in groups]
    return Cut(Outcome.WHOLE if whole else Outcome.CUT, offered, shared, cut)


def _is_all_there(groups: Sequence[Sequence[int]], total: int, wanted: int) -> bool:
    """Whether each group has the `wanted` first of `total` blocks, in the order of the tokens.

    A group that kept only its window's tail, or a state, fits the whole history alone: its first
    blocks are others than the first of the history.
    """
    if len({len(group) for group in groups}) > 1:
        return False
    return all(len(group) >= total and _NO_BLOCK not in group[:wanted] for group in groups)


def offered_tokens(params: Mapping[str, Any]) -> int:
    """How many tokens a handle says that its blocks hold; 0 if it says nothing of use."""
    value = params.get("remote_num_tokens")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
