"""Changes decided in memory, on their way to a table.

Rules change state without waiting for a store; what others may see of it goes through a
journal, which writes the latest state of every key in the order of the changes. A store that is
away delays changes and loses none. What somebody else wrote in between is never written over:
the change is refused, and whoever made it is told.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvplane_services.errors import Conflict
from kvplane_services.store.ports import MAX_CHANGES, MAX_GUARDS, Delete, Guard, Put, Table

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    value: T | None
    anchor: str
    guard: Guard | None


class Journal(Generic[T]):
    """An ordered queue of writes to one table.

    Args:
        table: Where to.
        checked: Whether values are written only over what this journal wrote or adopted; else
            over anything.
        on_refused: Told the key, and why, of a change that the store refused: somebody else
            changed the value, or its guard failed. The change is forgotten.

    """

    def __init__(
        self,
        *,
        table: Table[T],
        checked: bool = False,
        on_refused: Callable[[str, Conflict], None] | None = None,
    ) -> None:
        self._table = table
        self._checked = checked
        self._on_refused = on_refused
        self._pending: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._revisions: dict[str, int] = {}
        # Only one task writes at a time, or two could swap the order of their changes.
        self._writing = asyncio.Lock()

    def __len__(self) -> int:
        """Changes that are not written yet."""
        return len(self._pending)

    def put(self, key: str, value: T, *, anchor: str = "", guard: Guard | None = None) -> None:
        """Notes that `key` has a new value, which hangs on `anchor`."""
        self._note(key, _Entry(value, anchor, guard))

    def delete(self, key: str, *, guard: Guard | None = None) -> None:
        """Notes that `key` is gone."""
        self._note(key, _Entry(None, "", guard))

    def adopt(self, key: str, revision: int) -> None:
        """Notes that somebody else wrote `key`, and that this journal goes on from there."""
        if self._checked:
            self._revisions[key] = revision

    def forget(self, key: str) -> None:
        """Drops what is noted of `key` without writing it: somebody else looks after it now."""
        self._pending.pop(key, None)
        self._revisions.pop(key, None)

    async def flush(self) -> None:
        """Writes everything noted before the call.

        Raises:
            Unavailable: The store cannot be reached. What was not written stays noted.

        """
        async with self._writing:
            while self._pending:
                await self._write(self._batch())

    def _note(self, key: str, entry: _Entry[T]) -> None:
        self._pending[key] = entry
        self._pending.move_to_end(key)

    def _batch(self) -> list[tuple[str, _Entry[T]]]:
        batch: list[tuple[str, _Entry[T]]] = []
        guards: set[Guard] = set()
        for key, entry in self._pending.items():
            if entry.guard is not None:
                guards.add(entry.guard)
            if len(batch) == MAX_CHANGES or len(guards) > MAX_GUARDS:
                break
            batch.append((key, entry))
        return batch

    async def _write(self, batch: list[tuple[str, _Entry[T]]]) -> None:
        changes = [self._change(key, entry) for key, entry in batch]
        guards = {entry.guard for _, entry in batch if entry.guard is not None}
        try:
            revision = await self._table.commit(changes, guards=sorted(guards, key=repr))
        except Conflict as error:
            if len(batch) == 1:
                self._refuse(*batch[0], error)
                return
            # Which of them is refused shows when each is written by itself.
            for one in batch:
                if self._pending.get(one[0]) is one[1]:
                    await self._write([one])
            return
        for key, entry in batch:
            self._done(key, entry, revision)

    def _change(self, key: str, entry: _Entry[T]) -> Put[T] | Delete:
        expected = self._revisions.get(key, 0) if self._checked else None
        if entry.value is None:
            return Delete(key, expected)
        return Put(key, entry.value, expected, entry.anchor)

    def _done(self, key: str, entry: _Entry[T], revision: int) -> None:
        if self._pending.get(key) is entry:
            del self._pending[key]
        if not self._checked:
            return
        if entry.value is None:
            self._revisions.pop(key, None)
        else:
            self._revisions[key] = revision

    def _refuse(self, key: str, entry: _Entry[T], error: Conflict) -> None:
        if self._pending.get(key) is entry:
            del self._pending[key]
        if self._on_refused is not None:
            self._on_refused(key, error)
