"""Deadlines by key, found in the order in which they pass."""

import heapq


class Deadlines:
    """When what is due. Moving a deadline to a later time costs nothing until the old one passes.

    A key sits in the heap at its deadline or earlier; one that comes up too early is put back.
    So renewals, which only ever move deadlines back, do not touch the heap.
    """

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._queued: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: str, at: float) -> None:
        """Sets or moves the deadline of `key`, in seconds on the monotonic clock."""
        self._at[key] = at
        queued = self._queued.get(key)
        if queued is None or at < queued:
            self._queued[key] = at
            heapq.heappush(self._heap, (at, key))

    def get(self, key: str) -> float | None:
        """The deadline of `key`, if it has one."""
        return self._at.get(key)

    def drop(self, key: str) -> None:
        """Forgets `key`. Does nothing if it has no deadline."""
        self._at.pop(key, None)

    def pop_due(self, now: float) -> list[str]:
        """Removes and returns the keys whose deadline has come, earliest first."""
        due: list[tuple[float, str]] = []
        while self._heap and self._heap[0][0] <= now:
            queued, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued:
                continue
            del self._queued[key]
            at = self._at.get(key)
            if at is None:
                continue
            if at > now:
                self._queued[key] = at
                heapq.heappush(self._heap, (at, key))
                continue
            del self._at[key]
            due.append((at, key))
        return [key for _, key in sorted(due)]

    def next(self) -> float | None:
        """A time before which nothing is due, or None if there are no deadlines."""
        while self._heap:
            queued, key = self._heap[0]
            if key in self._at and self._queued.get(key) == queued:
                return queued
            heapq.heappop(self._heap)
            if self._queued.get(key) == queued:
                del self._queued[key]
        return None
