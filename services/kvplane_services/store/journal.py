"""Changes decided in memory, on their way to a table.

Rules change state without waiting for a store; what others may see of it goes through a
journal, which writes the latest state of every key in the order of the changes. A store that is
away delays changes and loses none. What somebody else wrote in between is never written over:
the change is refused, and whoever made it is told.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kvplane_services.errors import Conflict, GuardFailed
from kvplane_services.store.model import Delete, Guard, Put
from kvplane_services.store.ports import MAX_CHANGES, MAX_GUARDS, Table

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """What a change hangs on, and what must be so for it to be written."""

    anchor: str = ""
    guard: Guard | None = None


class Revisions(Protocol):
    """Which revision each value has that a journal wrote or adopted."""

    def get(self, key: str) -> int:
        """The revision of a value; 0 if there is none."""
        ...

    def set(self, key: str, revision: int) -> None:
        """Notes the revision of a value; 0 if it was deleted."""
        ...


class HeldRevisions:
    """Revisions of a journal that nobody else keeps them for."""

    def __init__(self) -> None:
        self._revisions: dict[str, int] = {}

    def get(self, key: str) -> int:
        """See `Revisions.get`."""
        return self._revisions.get(key, 0)

    def set(self, key: str, revision: int) -> None:
        """See `Revisions.set`."""
        if revision:
            self._revisions[key] = revision
        else:
            self._revisions.pop(key, None)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    value: T | None
    place: Place | None


@dataclass(frozen=True, slots=True)
class _Attempt(Generic[T]):
    key: str
    entry: _Entry[T]
    place: Place


class Journal(Generic[T]):
    """An ordered queue of writes to one table.

    Args:
        table: Where to.
        checked: Whether values are written only over what this journal wrote or adopted; else
            over anything.
        on_refused: Told the key, and why, of a change that the store refused: somebody else
            changed the value, or its guard failed. The change is forgotten.
        revisions: Keeps the revisions that a checked journal knows.
        place: Asked at every attempt for the place of a change that was noted without one. None
            drops the change: it is not this process's to make any more.

    """

    def __init__(
        self,
        *,
        table: Table[T],
        checked: bool = False,
        on_refused: Callable[[str, Conflict], None] | None = None,
        revisions: Revisions | None = None,
        place: Callable[[str, T | None], Place | None] | None = None,
    ) -> None:
        self._table = table
        self._checked = checked
        self._on_refused = on_refused
        self._place = place
        self._pending: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._revisions = revisions or HeldRevisions()
        # Only one task writes at a time, or two could swap the order of their changes.
        self._writing = asyncio.Lock()

    def __len__(self) -> int:
        """Changes that are not written yet."""
        return len(self._pending)

    def __contains__(self, key: str) -> bool:
        """Whether a change of that key is not written yet."""
        return key in self._pending

    def put(self, key: str, value: T, *, anchor: str = "", guard: Guard | None = None) -> None:
        """Notes that `key` has a new value, which hangs on `anchor`."""
        self._note(key, value, anchor, guard)

    def delete(self, key: str, *, guard: Guard | None = None) -> None:
        """Notes that `key` is gone."""
        self._note(key, None, "", guard)

    def adopt(self, key: str, revision: int) -> None:
        """Notes that somebody else wrote `key`, and that this journal goes on from there."""
        if self._checked:
            self._revisions.set(key, revision)

    def forget(self, key: str) -> None:
        """Drops what is noted of `key` without writing it: somebody else looks after it now."""
        self._pending.pop(key, None)
        if self._checked:
            self._revisions.set(key, 0)

    async def flush(self) -> None:
        """Writes everything noted before the call.

        Raises:
            Unavailable: The store cannot be reached. What was not written stays noted.

        """
        async with self._writing:
            while batch := self._batch():
                await self._write(batch)

    def _note(self, key: str, value: T | None, anchor: str, guard: Guard | None) -> None:
        asks = self._place is not None and not anchor and guard is None
        self._pending[key] = _Entry(value, None if asks else Place(anchor, guard))
        self._pending.move_to_end(key)

    def _batch(self) -> list[_Attempt[T]]:
        batch: list[_Attempt[T]] = []
        guards: set[Guard] = set()
        dropped: list[str] = []
        for key, entry in self._pending.items():
            place = entry.place
            if place is None and self._place is not None:
                place = self._place(key, entry.value)
            if place is None:
                dropped.append(key)
                continue
            if place.guard is not None:
                guards.add(place.guard)
            if len(batch) == MAX_CHANGES or len(guards) > MAX_GUARDS:
                break
            batch.append(_Attempt(key, entry, place))
        for key in dropped:
            del self._pending[key]
        return batch

    async def _write(self, batch: Sequence[_Attempt[T]]) -> None:
        """Writes what it can of a batch in as few commits as it takes."""
        while batch:
            guards = {one.place.guard for one in batch if one.place.guard is not None}
            try:
                revision = await self._table.commit(
                    [self._change(one) for one in batch], guards=sorted(guards, key=repr)
                )
            except Conflict as error:
                batch = await self._without_refused(batch, error)
                continue
            for one in batch:
                self._done(one, revision)
            return

    async def _without_refused(
        self, batch: Sequence[_Attempt[T]], error: Conflict
    ) -> Sequence[_Attempt[T]]:
        """Refuses what an error is about, and returns the rest, to be written once more."""
        key = error.metadata.get("key")
        if isinstance(error, GuardFailed):
            refused = [one for one in batch if one.place.guard and one.place.guard.key == key]
        else:
            refused = [one for one in batch if one.key == key]
        if not refused and len(batch) == 1:
            refused = list(batch)
        if not refused:
            # Which of them is refused, or whether they are only too large together, shows when
            # they are written in smaller batches.
            middle = len(batch) // 2
            await self._write(batch[:middle])
            await self._write(batch[middle:])
            return []
        for one in refused:
            self._refuse(one, error)
        return [one for one in batch if one not in refused]

    def _change(self, one: _Attempt[T]) -> Put[T] | Delete:
        expected = self._revisions.get(one.key) if self._checked else None
        if one.entry.value is None:
            return Delete(one.key, expected)
        return Put(one.key, one.entry.value, expected, one.place.anchor)

    def _done(self, one: _Attempt[T], revision: int) -> None:
        if self._pending.get(one.key) is one.entry:
            del self._pending[one.key]
        if self._checked:
            self._revisions.set(one.key, 0 if one.entry.value is None else revision)

    def _refuse(self, one: _Attempt[T], error: Conflict) -> None:
        if self._pending.get(one.key) is one.entry:
            del self._pending[one.key]
        if self._on_refused is not None:
            self._on_refused(one.key, error)
