"""The store port: typed tables with compare-and-set and a resumable watch.

Implementations MUST pass tests/contract/store. The memory adapter is the
embedded default; others keep the same semantics for several replicas.

Reads are answered from this process's own copy of a table, which its watch keeps up to date;
they never wait for the store. Writes are checked against the store itself, so that a decision
made on an old copy is refused and not carried out.
"""

from collections.abc import AsyncIterator
from collections.abc import Sequence as AbstractSequence
from typing import Protocol, TypeVar

from kvplane_services.store.model import Delete, Event, Guard, Put, Snapshot, TableSpec, Versioned

T = TypeVar("T")

# Changes that one commit may hold: etcd takes 128 operations unless told otherwise.
MAX_CHANGES = 100
MAX_GUARDS = 20


class Table(Protocol[T]):
    """One kind of value by key. Any text is a key, and reaches no other.

    Revisions are the store's, strictly increasing over all tables, as long as the store keeps
    its data. No method blocks on readers of a watch: a reader that falls too far behind is cut
    with `Saturated`.
    """

    async def get(self, key: str, *, current: bool = False) -> Versioned[T] | None:
        """The value, or None.

        Args:
            key: Which.
            current: Ask the store itself, not this process's copy.

        Raises:
            Unavailable: The store cannot be reached; with `current` only.

        """
        ...

    async def list(self) -> Snapshot[T]:
        """Everything that this process's copy holds, by key; for the revision, see `revision`."""
        ...

    async def revision(self) -> int:
        """Revision that this process's copy has reached: a watch after it misses nothing.

        It may lag: what this process wrote itself is read at once, and reached a moment later.
        """
        ...

    async def reached(self, revision: int) -> None:
        """Returns once this process's copy holds everything up to a revision of the store.

        So whoever was let in by a write at that revision, as by taking something over from another
        process, knows all that the other wrote before. It waits for as long as it takes.
        """
        ...

    async def put(
        self, key: str, value: T, *, expected: int | None = None, anchor: str = ""
    ) -> int:
        """Writes as `Put` says, and returns the value's revision. This process reads it at once.

        Raises:
            Conflict: `expected` does not match. Nothing was written.
            Unavailable: The store cannot be reached. Whether it was written is unknown.

        """
        ...

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """Deletes as `Delete` says, and tells whether there was a value.

        Raises:
            Conflict: `expected` does not match. Nothing was deleted.
            Unavailable: The store cannot be reached. Whether it was deleted is unknown.

        """
        ...

    async def commit(
        self, changes: AbstractSequence[Put[T] | Delete], *, guards: AbstractSequence[Guard] = ()
    ) -> int:
        """Makes all changes at once, or none, and returns the revision that they got.

        Args:
            changes: At most `MAX_CHANGES`, each of another key.
            guards: What must be so as well, in any table of the store; at most
                `MAX_GUARDS`.

        Raises:
            GuardFailed: A guard does not hold. Nothing was changed.
            Conflict: A value is not as expected. Nothing was changed.
            TooLarge: The values take more bytes than the store takes at once; a megabyte is
                safe. Nothing was changed.
            Unavailable: The store cannot be reached, and whether it was done is unknown; or an
                anchor is gone, and nothing was changed.
            ValueError: Too many changes or guards, or two changes of one key.

        """
        ...

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[T]]:
        """Changes after a revision; 0 sends the current state as Upserted, then Synced, first.

        Raises:
            WatchTooOld: Changes after `after` are no longer held, or the store lost its data or
                more history than its copy here could follow.
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
    """Numbers that only grow, whoever draws them, over restarts and over a loss of the store.

    A number drawn by a call that began after another had returned is larger than that one's.
    """

    async def next(self, count: int = 1) -> int:
        """The first of `count` consecutive new numbers.

        Raises:
            Unavailable: The store cannot be reached.

        """
        ...


class Anchors(Protocol):
    """What values hang on that must vanish when nobody vouches for them any more.

    An anchor lives while any process keeps it, and for at least its TTL after that; then the
    store removes all values on it. Its name is text that another process can keep it by.

    Not promised: that values vanish soon after the TTL.
    """

    async def open(self, ttl: float, *, keep: bool = True) -> str:
        """Makes an anchor of `ttl` seconds, and keeps it alive from here on unless told not to.

        Raises:
            Unavailable: The store cannot be reached.

        """
        ...

    def keep(self, anchor: str, ttl: float) -> None:
        """Keeps an anchor alive that any process made with this TTL. Does nothing if it is kept.

        If the store has no such anchor, it is reported as lost.
        """
        ...

    def drop(self, anchor: str) -> None:
        """No longer keeps an anchor alive; it lapses unless somebody else keeps it."""
        ...

    async def revoke(self, anchor: str) -> None:
        """Removes an anchor and all values on it, and no longer keeps it. Raises Unavailable."""
        ...

    def lost(self) -> AsyncIterator[str]:
        """Anchors that the store no longer has: their values are gone, put them back on new ones.

        Told of those that are kept here, and of those that a write here named. Each is reported
        once to every reader, whoever opened it, from this call on, and is no longer kept; the
        first reader is also told of those before.
        """
        ...


class Store(Protocol):
    """Tables, sequences and anchors that share one revision counter."""

    @property
    def reachable(self) -> bool:
        """Whether the store answered lately: a call is likely to be answered soon."""
        ...

    @property
    def anchors(self) -> Anchors:
        """What values can hang on."""
        ...

    def table(self, spec: TableSpec[T]) -> Table[T]:
        """The table of that spec: the same one for the same spec."""
        ...

    def sequence(self, name: str) -> Sequence:
        """The sequence of that name: lower-case letters."""
        ...
