"""vLLM's pool of KV blocks: what is free, who holds what, and how many blocks requests take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplane_connector.versions import context_ranks

if TYPE_CHECKING:
    from kvplane_connector.vllm_names import BlockPool


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers whose KV lies in the same blocks.

    Attributes:
        block_size: Tokens per block.
        most_tokens: Tokens kept of one request at most, for a sliding window; None for all.
        by_position: Whether a request's blocks stand in the order of its tokens; of a state space's
            only vLLM knows what they hold.

    """

    block_size: int
    most_tokens: int | None = None
    by_position: bool = True

    def blocks(self, tokens: int) -> int:
        """Blocks that a request of so many tokens takes."""
        if self.most_tokens is not None and tokens > self.most_tokens:
            # A window need not begin at the beginning of a block.
            return -(-self.most_tokens // self.block_size) + 1
        return -(-tokens // self.block_size)


class KvBlocks:
    """The pool, as far as the connector looks at it. Empty until it is bound.

    Args:
        groups: The model's cache groups.
        watermark: Part of the pool that vLLM keeps free when it admits a request.

    """

    def __init__(self, groups: Sequence[CacheGroup] = (), *, watermark: float = 0.0) -> None:
        self.groups = tuple(groups)
        # Tokens per block of those groups in which a request never stops to take blocks.
        self.growing = tuple(one.block_size for one in groups if one.most_tokens is None)
        self._watermark = watermark
        self._pool: BlockPool | None = None

    def bind(self, pool: Any) -> None:
        """Takes vLLM's pool."""
        self._pool = pool

    @property
    def total(self) -> int:
        """KV blocks in all, vLLM's null block not counted; 0 before the pool is there."""
        return self._pool.num_gpu_blocks - 1 if self._pool is not None else 0

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self._pool.get_num_free_blocks() if self._pool is not None else 0

    @property
    def kept_free(self) -> int:
        """Blocks that vLLM leaves free when it admits a request."""
        return int(self._watermark * (self.total + 1))

    def holders(self, block: int) -> int:
        """How many requests hold a block, finished ones that are retained included."""
        return self._pool.blocks[block].ref_cnt if self._pool is not None else 0

    def taken_by(self, tokens: int) -> int:
        """Blocks that a request of so many tokens takes."""
        return sum(group.blocks(tokens) for group in self.groups)

    def held_hits(self, request: Any, tokens: int) -> frozenset[int]:
        """Blocks of the prefix cache that a request would share with those who hold them.

        Args:
            request: vLLM's.
            tokens: How many of its tokens vLLM found in its prefix cache.

        """
        pool = self._pool
        if pool is None or len(self.groups) != 1:
            # Of several groups each has hits of its own. Counted as if none were held, a request
            # seems to need more than it does.
            return frozenset()
        size = self.groups[0].block_size
        if getattr(pool, "hash_block_size", size) != size:
            return frozenset()
        hits: set[int] = set()
        for one in request.block_hashes[: tokens // size]:
            for block in pool.get_cached_block(one, [0]) or ():
                if block.ref_cnt > 0:
                    hits.add(block.block_id)
        return frozenset(hits)


def blocks_of_tokens(
    groups: Sequence[CacheGroup], block_ids: Sequence[Sequence[int]], tokens: int
) -> tuple[Sequence[int], ...]:
    """A request's blocks, of each group, without those behind its first `tokens`.

    With steps in flight vLLM can take one for a token that a stop then cuts off. Readers align at
    the end, and of a window's blocks, which are not all there, could not tell that there is one too
    many.
    """
    if len(groups) != len(block_ids):
        return tuple(block_ids)
    return tuple(
        blocks[: -(-tokens // group.block_size)] if group.by_position else blocks
        for group, blocks in zip(groups, block_ids, strict=True)
    )


def cache_groups(vllm_config: Any, kv_cache_config: Any) -> tuple[CacheGroup, ...]:
    """The cache groups of a model, from vLLM's configuration."""
    parallel, scheduling = vllm_config.parallel_config, vllm_config.scheduler_config
    # Ranks that share a context hold a part of each block.
    ranks = context_ranks(parallel)
    groups: list[CacheGroup] = []
    for group in kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        window = getattr(spec, "sliding_window", None) or getattr(
            spec, "attention_chunk_size", None
        )
        most = window + scheduling.max_num_batched_tokens if window else None
        groups.append(CacheGroup(spec.block_size * ranks, most, _is_by_position(spec)))
    return tuple(groups)


def _is_by_position(spec: Any) -> bool:
    """Whether it is attention to all tokens, to a window's or to a chunk's, or some of these."""
    parts = getattr(spec, "kv_cache_specs", None)
    return all(
        hasattr(one, "sliding_window") or hasattr(one, "attention_chunk_size")
        for one in (parts.values() if parts else (spec,))
    )
