"""What the etcd store asks of an etcd client: etcd's own operations, and nothing of kvplane.

Two clients implement it, and tests/contract/etcd_backend holds for both: one over the
project's own stubs on grpc.aio, and one over the `etcd3` package.

Errors are the domain's: `Unavailable` where etcd cannot be reached or does not answer in time,
`StoreRefused` where it answers but will not serve us (password, certificate, version).
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvplane_services.errors import Unavailable


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key with its value, and etcd's numbers: revisions, and the etcd lease (0: none)."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """Who answered: id of the cluster, and its revision at the answer."""

    cluster_id: int
    revision: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds if the key's mod_revision is this one; 0 if it must not exist."""

    key: bytes
    mod_revision: int


@dataclass(frozen=True, slots=True)
class PutOp:
    """Write a key, attached to an etcd lease unless that is 0."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """Delete a key."""

    key: bytes


@dataclass(frozen=True, slots=True)
class TxnResult:
    """What a transaction did.

    If it `succeeded`, `deleted` says of each DeleteOp, in order, whether there was a key. If
    not, `found` is what the compared keys held, those that exist, at that moment.
    """

    header: Header
    succeeded: bool
    deleted: tuple[bool, ...] = ()
    found: tuple[KeyValue, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Keys with a prefix, all as of the header's revision, in the order of their bytes."""

    header: Header
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """A key was written."""

    item: KeyValue


@dataclass(frozen=True, slots=True)
class Deleted:
    """A key was deleted, or its etcd lease ran out."""

    key: bytes
    mod_revision: int


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Events of one or more whole revisions, in order; none in a progress notice.

    The header's revision is one up to which everything was delivered.
    """

    header: Header
    events: tuple[Changed | Deleted, ...]


class CompactedError(Exception):
    """Changes from the revision to watch from are compacted, or etcd has lost its newest history.

    `revision` is one that is still there.
    """

    def __init__(self, revision: int) -> None:
        super().__init__(f"etcd has no changes from there on, but a state at revision {revision}")
        self.revision = revision


class NoRoom(Unavailable):
    """etcd answers, and takes no writes until an operator has made room. Nothing was done."""


class LeaseGone(Exception):
    """An operation named an etcd lease that does not exist."""


class EtcdBackend(Protocol):
    """An etcd client. Everything runs in one event loop; nothing is retried unless it says so."""

    async def connect(self) -> Header:
        """Connects, checks the version (3.4 or later) and credentials.

        Raises:
            StoreRefused: etcd is too old, or does not take the password or certificate.
            Unavailable: No endpoint answers.

        """
        ...

    async def close(self) -> None:
        """Ends all streams and connections. Idempotent."""
        ...

    async def get(self, key: bytes) -> tuple[Header, KeyValue | None]:
        """One key, linearizable; retried within the deadline, since reads are idempotent."""
        ...

    async def range(self, prefix: bytes) -> RangeResult:
        """All keys with a prefix at one revision, in as many pages as it takes; linearizable."""
        ...

    def pages(self, prefix: bytes) -> AsyncIterator[RangeResult]:
        """As `range`, but in parts as they come: all as of the revision of the first one's header.

        There is at least one, which may be empty.

        Raises:
            CompactedError: That revision was compacted in between: begin again.

        """
        ...

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[PutOp | DeleteOp]
    ) -> TxnResult:
        """Does all operations if all compares hold, else none. Tried once: see `Unavailable`.

        Raises:
            LeaseGone: An operation names an etcd lease that does not exist. Nothing was done.
            Unavailable: No answer. Whether it was done is unknown.

        """
        ...

    def watch(self, prefix: bytes, *, start_revision: int) -> AsyncIterator[WatchBatch]:
        """Changes of keys with a prefix from a revision on; each watch is a stream of its own.

        The first batch comes as soon as the watch stands, empty if there is nothing yet, and
        progress notices come at least every 10 seconds.

        Raises:
            CompactedError: Changes from `start_revision` on cannot be had: read everything.
            StoreRefused: etcd will not serve this process.
            Unavailable: The stream broke, or was silent for too long. Watch again, from the
                revision after the last one delivered.

        """
        ...

    async def grant(self, ttl: int) -> int:
        """Makes an etcd lease of that many seconds, and returns its id."""
        ...

    def keep_alive(self, leases: AsyncIterator[int]) -> AsyncIterator[tuple[int, int]]:
        """Renews every etcd lease that `leases` names, over one stream.

        Yields an id and its remaining seconds for each; 0 if etcd does not have it (any more).

        Raises:
            Unavailable: The stream broke, or was silent for too long.

        """
        ...

    async def revoke(self, lease: int) -> None:
        """Ends an etcd lease, and deletes the keys on it. Does nothing if there is none."""
        ...
