"""The store port: typed tables with compare-and-set and a resumable watch.

Implementations MUST pass tests/contract/test_store_contract.py. The memory adapter is the
embedded default; others keep the same semantics for several replicas.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value and the store revision of its last write."""

    key: str
    value: T
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """All values of a table, by key, and the revision that they were read at."""

    items: tuple[Versioned[T], ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Upserted(Generic[T]):
    """A value was written."""

    key: str
    value: T
    revision: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A value was deleted."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything up to `revision` was delivered: the initial state is complete, or a bookmark."""

    revision: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The source starts over with its full state: drop what is not seen again before Synced."""


Event = Upserted[T] | Removed | Synced | Reset


class Table(Protocol[T]):
    """One kind of value by key.

    Revisions are the store's, strictly increasing over all tables. No method blocks on
    readers of a watch: a reader that falls too far behind is cut with `Saturated`.
    """

    async def get(self, key: str) -> Versioned[T] | None:
        """The value, or None."""
        ...

    async def list(self) -> Snapshot[T]:
        """Everything, by key."""
        ...

    async def revision(self) -> int:
        """Revision of the store's last write: a watch after it misses nothing that follows."""
        ...

    async def put(self, key: str, value: T, *, expected: int | None = None) -> int:
        """Writes, and returns the new revision.

        Args:
            key: Where.
            value: What.
            expected: Revision that the value must have; 0 if it must not exist; None for any.

        Raises:
            Conflict: `expected` does not match. Nothing was written.
            Unavailable: The store cannot be reached. Whether it was written is unknown.

        """
        ...

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """Deletes, and tells whether there was a value.

        Raises:
            Conflict: `expected` does not match. Nothing was deleted.
            Unavailable: The store cannot be reached.

        """
        ...

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[T]]:
        """Changes after a revision; 0 sends the current state as Upserted, then Synced, first.

        Raises:
            WatchTooOld: Changes after `after` are no longer held.
            Saturated: The reader fell too far behind.

        """
        ...


class Feed(Protocol[T]):
    """A source of a table's events that heals by itself.

    Each call starts from the full state. After trouble an implementation goes on by itself,
    with Reset and the full state if it had to start over; it ends only when cancelled.
    """

    def __call__(self) -> AsyncIterator[Event[T]]:
        """Opens the feed."""
        ...


class Sequence(Protocol):
    """Numbers that only grow, over the life of the store and over restarts of the plane."""

    async def next(self) -> int:
        """The next number.

        Raises:
            Unavailable: The store cannot be reached.

        """
        ...
