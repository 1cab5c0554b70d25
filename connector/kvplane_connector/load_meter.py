"""The engine's load, as far as a KV connector can see it."""

from typing import Any


class LoadMeter:
    """Counts requests and blocks. Written by the step loop, read by the link."""

    def __init__(self) -> None:
        self._present: set[str] = set()
        self._scheduled = 0
        # The request that vLLM tries to place, and the one that the last step found no blocks for.
        self._offered = ""
        self._unplaced = ""
        self._pool: Any = None

    def arrived(self, request_id: str) -> None:
        """A request came in."""
        self._present.add(request_id)

    def left(self, request_id: str) -> None:
        """A request finished, or was given up."""
        self._present.discard(request_id)
        if request_id == self._unplaced:
            self._unplaced = ""

    def offered(self, request_id: str) -> None:
        """A request is the next to get blocks."""
        self._offered = request_id

    def placed(self, request_id: str) -> None:
        """A request got its blocks."""
        if request_id == self._offered:
            self._offered = ""

    def scheduled(self, requests: int) -> None:
        """A step was put together with this many requests."""
        self._scheduled = requests
        self._unplaced, self._offered = self._offered, ""

    def bind(self, block_pool: Any) -> None:
        """Takes vLLM's block pool."""
        self._pool = block_pool

    @property
    def running_requests(self) -> int:
        """Requests in the last step that are still there."""
        return min(self._scheduled, len(self._present))

    @property
    def waiting_requests(self) -> int:
        """Requests that were not in the last step."""
        return len(self._present) - self.running_requests

    @property
    def lacks_blocks(self) -> bool:
        """Whether the last step ended at a request for which too few blocks were free."""
        return bool(self._unplaced)

    @property
    def total_blocks(self) -> int:
        """KV blocks in all, vLLM's null block not counted; 0 before the pool is there."""
        return self._pool.num_gpu_blocks - 1 if self._pool is not None else 0

    @property
    def used_blocks(self) -> int:
        """KV blocks in use, retained ones included."""
        return self.total_blocks - self._pool.get_num_free_blocks() if self._pool is not None else 0
