"""What a prefill leg may read of the handle that came with it, and the count of that."""

import logging
from collections.abc import Mapping
from typing import Any

from kvplane.transfer_params import KEY, decode_proof
from kvplane_connector.prefix_check import Cut, Outcome, cut_handle, offered_tokens
from kvplane_connector.read_fence import read_expiry
from kvplane_connector.read_stats import ReadStats
from kvplane_connector.request_context import context_for, is_provable, media_of
from kvplane_connector.usable_handle import CHECKED, NeededBlocks, owner_ranks

_log = logging.getLogger(__name__)

_EXPIRY = "remote_blocks_expiry_time"


class OfferedHandles:
    """Cuts handles, once each.

    Args:
        needed: What vLLM's workers take for granted.
        block_size: Tokens per block of owners that do not say.

    """

    def __init__(self, *, needed: NeededBlocks, block_size: int) -> None:
        self._needed = needed
        self._block_size = block_size
        self._stats: ReadStats | None = None

    def cut(self, request: Any, params: dict[str, Any]) -> None:
        """Leaves of a prefill leg's handle only what its blocks provably hold of the prompt."""
        params[CHECKED] = True
        if not is_provable(request):
            cut = Cut(Outcome.UNPROVABLE, offered_tokens(params))
        else:
            block_size = _block_size(params, self._block_size)
            cut = cut_handle(
                params,
                decode_proof(params),
                request.prompt_token_ids,
                context_for(request),
                block_size,
                media_of(request),
            )
            # A handle of an engine whose ranks share blocks names fewer than are needed here.
            if cut.tokens and not self._needed.are_in(
                cut.block_ids,
                cut.tokens,
                block_size=block_size,
                exactly=len(cut.block_ids) > 1,
            ):
                cut = Cut(Outcome.SHORT, cut.offered)
        if cut.tokens:
            params["remote_block_ids"] = cut.block_ids
            params["remote_num_tokens"] = cut.tokens
        else:
            params["remote_block_ids"] = None
        self._count(cut)
        if cut.outcome is not Outcome.WHOLE:
            _log.info(
                "%s may read %d of %d tokens: %s",
                request.request_id,
                cut.tokens,
                cut.offered,
                cut.outcome.value,
            )

    def take_stats(self) -> ReadStats | None:
        """What became of handles since the last call; None if none came."""
        stats, self._stats = self._stats, None
        return stats

    def holds(self, params: Mapping[str, Any], tokens: int) -> bool:
        """Whether a decode leg's handle names the blocks of so many tokens."""
        return self._needed.are_in(
            params["remote_block_ids"],
            tokens,
            block_size=self._block_size,
            ranks=owner_ranks(params),
        )

    def _count(self, cut: Cut) -> None:
        if self._stats is None:
            self._stats = ReadStats()
        self._stats.record_handle(cut.outcome.label, offered=cut.offered, tokens=cut.tokens)


def is_fenced(params: Mapping[str, Any]) -> bool:
    """Whether a decode leg's handle names blocks, and says until when they are kept."""
    return bool(params.get("remote_block_ids")) and read_expiry(params.get(_EXPIRY)) is not None


def _block_size(params: Mapping[str, Any], own: int) -> int:
    """Tokens per block at the owner, which its proof says; else our own."""
    proof = params.get(KEY)
    told = proof.get("block_size") if isinstance(proof, Mapping) else None
    return told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else own
