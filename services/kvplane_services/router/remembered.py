"""A mapping that forgets its oldest entries."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Keeps at most `limit` entries; writing one makes it the newest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """The value, or None."""
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Writes, and forgets the oldest entry beyond the limit."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def forget(self, key: K) -> V | None:
        """Removes an entry, and returns it."""
        return self._entries.pop(key, None)
