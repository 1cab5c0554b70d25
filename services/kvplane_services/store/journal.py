"""Changes decided in memory, on their way to a table.

Rules change state without waiting for a store; what others may see of it goes through a
journal, which writes every change once and in order. A store that is away delays the changes
and loses none.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from kvplane_services.store.ports import Table

T = TypeVar("T")


class Journal(Generic[T]):
    """An ordered queue of writes to one table."""

    def __init__(self, *, table: Table[T]) -> None:
        self._table = table
        self._pending: deque[tuple[str, T | None]] = deque()
        # Only one task writes at a time, or two could swap the order of their changes.
        self._writing = asyncio.Lock()

    def put(self, key: str, value: T) -> None:
        """Notes that `key` has a new value."""
        self._pending.append((key, value))

    def delete(self, key: str) -> None:
        """Notes that `key` is gone."""
        self._pending.append((key, None))

    async def flush(self) -> None:
        """Writes everything noted before the call.

        Raises:
            Unavailable: The store cannot be reached. What was not written stays noted.

        """
        async with self._writing:
            while self._pending:
                key, value = self._pending[0]
                if value is None:
                    await self._table.delete(key)
                else:
                    await self._table.put(key, value)
                self._pending.popleft()
