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
        self._scheduled = 0

    def arrived(self, request_id: str) -> None:
        """A request came in."""
        self._present.add(request_id)

    def left(self, request_id: str) -> None:
        """A request finished, or was given up."""
        self._present.discard(request_id)

    def scheduled(self, requests: int) -> None:
        """A step was put together with this many requests."""
        self._scheduled = requests

    @property
    def running_requests(self) -> int:
        """Requests in the last step that are still there."""
        return min(self._scheduled, len(self._present))

    @property
    def waiting_requests(self) -> int:
        """Requests that were not in the last step."""
        return len(self._present) - self.running_requests

    @property
    def total_blocks(self) -> int:
        """KV blocks in all, vLLM's null block not counted; 0 before the pool is there."""
        return self._blocks.total

    @property
    def used_blocks(self) -> int:
        """KV blocks in use, retained ones included."""
        return self._blocks.total - self._blocks.free
