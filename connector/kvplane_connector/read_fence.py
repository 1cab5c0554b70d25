"""Whether blocks of another engine were surely still kept when they were read.

A read is one-sided: the owner neither allows it nor notices it, and blocks that it gave away
meanwhile are read without any error. All that protects a reader is the expiry in the handle, in
the owner's clock: nothing may be read that could end after it. So a read is not begun near the
expiry, and one that was held up past it, by a frozen reader or a slow link, counts as failed
although its bytes arrived. The owner may keep blocks longer than it said, never shorter.
"""

import sys
from collections.abc import Mapping
from typing import Any

from kvplane.client.clock import Clock

# vLLM's own margin for beginning a read, which most reads then end within.
BEGIN_MARGIN = 5.0
# For clocks that drift apart between handshakes. How far off the handshake's reading of the
# owner's clock can be is in the offset already.
END_MARGIN = 1.0
# A handshake in which one side stood still this long tells too little of the owner's clock.
LONGEST_HANDSHAKE = 15.0


class ReadFence:
    """The reader's side of the promise in a handle.

    Args:
        clock: This engine's, which expiries are compared in.
        ahead: How far the clock of each engine that we shook hands with is ahead of ours, at
            most, by its id; looked up at each check.

    """

    def __init__(self, *, clock: Clock, ahead: Mapping[str, float]) -> None:
        self._clock = clock
        self._ahead = ahead

    def may_begin(self, meta: Any) -> bool:
        """Whether the read that vLLM's `ReqMeta` asks for may be begun now."""
        return self._is_kept(meta, BEGIN_MARGIN)

    def ended_in_time(self, meta: Any) -> bool:
        """Whether a read that was just seen to be done has read what the handle promised."""
        return self._is_kept(meta, END_MARGIN)

    def _is_kept(self, meta: Any, seconds: float) -> bool:
        if not any(len(group) for group in meta.local_physical_block_ids or ()):
            # Nothing is read: the owner is only told that it need not keep the blocks.
            return True
        expiry = read_expiry(meta.remote.blocks_expiry_time)
        ahead = self._ahead.get(meta.remote.engine_id)
        if expiry is None or ahead is None:
            return False
        return self._clock.now() + seconds < expiry - ahead


def read_expiry(value: Any) -> float | None:
    """The expiry of a handle, None if it says none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON can spell NaN, which compares with nothing, infinity, and integers past any float.
    return float(value) if abs(value) <= sys.float_info.max else None


def widest_offset(offset: float, *, took: float) -> float:
    """How far the owner's clock can be ahead at most.

    Args:
        offset: vLLM's estimate: the owner's reading less the middle of the exchange.
        took: Seconds that the handshake took, the exchange within.

    Raises:
        ValueError: It took too long to tell.

    """
    if took > LONGEST_HANDSHAKE:
        raise ValueError(
            f"the handshake took {took:.0f} s, and tells too little of the other engine's clock"
        )
    return offset + took / 2
