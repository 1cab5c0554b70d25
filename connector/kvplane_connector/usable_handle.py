"""Whether what a request says of blocks elsewhere can be worked with at all.

Handles come with requests, and requests from anybody who reaches the engine. vLLM takes them as
they are: a field of the wrong type, or a list that is shorter than what is to be read, raises in
its step loop or its workers, and that ends the engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from kvplane_connector.kv_blocks import CacheGroup

# What we and vLLM note in a request's parameters while it is here; nobody may send it.
CHECKED = "_kvplane_checked"
READ_DONE = "_remote_blocks_processed"
_NOTES = (CHECKED, READ_DONE, "_p_side_truncated")

_NAMES = ("remote_engine_id", "remote_request_id", "remote_host")
_COUNTS = ("tp_size", "dcp_size", "pp_size", "remote_block_size")
_LONGEST_NAME = 1024
_MOST = 1 << 16
_MOST_BLOCKS = 1 << 31
_LAST_PORT = (1 << 16) - 1


def forget_notes(params: dict[str, Any]) -> None:
    """Takes out what only this engine may say of a request."""
    for note in _NOTES:
        params.pop(note, None)


def is_usable(params: Mapping[str, Any]) -> bool:
    """Whether all of a handle that vLLM uses is of the right type; true without a handle."""
    blocks = params.get("remote_block_ids")
    if blocks and not are_block_ids(blocks):
        return False
    if not blocks and not params.get("do_remote_prefill"):
        return True
    tokens = params.get("remote_num_tokens")
    return (
        all(_is_name(params.get(key), needed=bool(blocks)) for key in _NAMES)
        and _is_port(params.get("remote_port"), needed=bool(blocks))
        and all(_is_count(params[key]) for key in _COUNTS if key in params)
        and (tokens is None or (_is_whole(tokens) and tokens >= 0))
    )


def drop_handle(params: dict[str, Any]) -> None:
    """Leaves a request nothing to read, so that it computes all of its prompt."""
    params["do_remote_prefill"] = False
    for key in ("remote_block_ids", "remote_num_tokens", *_NAMES, "remote_port"):
        params[key] = None


def are_block_ids(groups: Any) -> bool:
    """Whether these are lists of numbers that blocks can have, one for each cache group."""
    return (
        isinstance(groups, list | tuple)
        and len(groups) > 0
        and all(
            isinstance(group, list | tuple)
            and all(_is_whole(block) and 0 <= block < _MOST_BLOCKS for block in group)
            for group in groups
        )
    )


class NeededBlocks:
    """How many blocks of each cache group vLLM's workers take for granted in a handle.

    Args:
        groups: The model's cache groups.
        windows: vLLM's: of each group that travels, the blocks of its window; 0 for none.
        block_size: vLLM's tokens per block on this engine, which owners may differ from.

    """

    def __init__(
        self, groups: Sequence[CacheGroup], windows: Sequence[int], *, block_size: int
    ) -> None:
        self._groups = groups
        self._windows = windows
        self._block_size = block_size

    def are_in(
        self,
        block_ids: Sequence[Sequence[int]],
        tokens: int,
        *,
        block_size: int,
        ranks: int = 1,
        exactly: bool = False,
    ) -> bool:
        """Whether a handle names as many as reading so many tokens takes.

        Args:
            block_ids: The handle's.
            tokens: What is to be read.
            block_size: The owner's tokens per block.
            ranks: The owner's ranks that share a block.
            exactly: Whether more are too many: a window's tail that ends behind the tokens is
                read shifted, and what shows it are the other groups.

        """
        if len(block_ids) != len(self._windows):
            return False
        if len(self._groups) != len(self._windows):
            # Some groups do not travel, and vLLM alone knows which.
            return True
        # An owner's block is never larger than a reader's, whatever a handle says.
        told = min(block_size, self._block_size)
        for blocks, group, window in zip(block_ids, self._groups, self._windows, strict=True):
            if not group.by_position:
                continue
            size = group.block_size * told * ranks // self._block_size
            if size < 1:
                return False
            needed = -(-tokens // size)
            if window:
                needed = min(needed, window)
            if len(blocks) < needed or (exactly and len(blocks) > needed):
                return False
        return True


def owner_ranks(params: Mapping[str, Any]) -> int:
    """How many of the owner's ranks share a block, by a handle that is usable."""
    return int(params.get("dcp_size", 1))


def _is_name(value: Any, *, needed: bool) -> bool:
    if value is None:
        return not needed
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can spell half a character, which no message can carry.
        return False
    return True


def _is_port(value: Any, *, needed: bool) -> bool:
    if value is None:
        return not needed
    return _is_whole(value) and 0 < value <= _LAST_PORT


def _is_count(value: Any) -> bool:
    return _is_whole(value) and 0 < value <= _MOST


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
