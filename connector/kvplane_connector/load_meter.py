"""The engine's load, as far as a KV connector can see it."""

from kvplane_connector.kv_blocks import KvBlocks


class LoadMeter:
    """Counts requests and blocks. Written by the step loop, read by the link.

    Args:
        blocks: vLLM's pool of blocks.

    """

    def __init__(self, blocks: KvBlocks) -> None:
        self._blocks = blocks
        self._present: set[str] = set()
        # Those of them that have no blocks. A request that waits for its read has some.
        self._unplaced: set[str] = set()

    def arrived(self, request_id: str) -> None:
        """A request came in."""
        self._present.add(request_id)
        self._unplaced.add(request_id)

    def asked(self, request_id: str) -> None:
        """A request is the next to get blocks: it is new, or lost those that it had."""
        if request_id in self._present:
            self._unplaced.add(request_id)

    def placed(self, request_id: str) -> None:
        """A request got its blocks."""
        self._unplaced.discard(request_id)

    def left(self, request_id: str) -> None:
        """A request finished, or was given up."""
        self._present.discard(request_id)
        self._unplaced.discard(request_id)

    @property
    def present_requests(self) -> int:
        """Requests that are there, whatever they wait for."""
        return len(self._present)

    @property
    def running_requests(self) -> int:
        """Requests that have blocks, also while they wait for a read."""
        return max(len(self._present) - len(self._unplaced), 0)

    @property
    def waiting_requests(self) -> int:
        """Requests that have no blocks."""
        return len(self._unplaced)

    @property
    def total_blocks(self) -> int:
        """KV blocks in all, vLLM's null block not counted; 0 before the pool is there."""
        return self._blocks.total

    @property
    def used_blocks(self) -> int:
        """KV blocks in use, retained ones included."""
        return self._blocks.total - self._blocks.free
