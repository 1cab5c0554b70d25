"""A table in etcd: read from this process's copy, written by transactions."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

from kvplane_services.adapters.etcd.anchors import EtcdAnchors, lease_of
from kvplane_services.adapters.etcd.backend import (
    Compare,
    DeleteOp,
    EtcdBackend,
    KeyValue,
    LeaseGone,
    PutOp,
    TxnResult,
)
from kvplane_services.adapters.etcd.contact import Contact
from kvplane_services.adapters.etcd.intake import Intake
from kvplane_services.adapters.etcd.keys import KeySpace
from kvplane_services.errors import TooLarge, Unavailable
from kvplane_services.store.commits import (
    Held,
    anchor_gone,
    check_commit,
    check_held,
    done_at,
    guard_failed,
)
from kvplane_services.store.model import Delete, Event, Guard, Put, Snapshot, TableSpec, Versioned

T = TypeVar("T")

# etcd takes requests of 1.5 MiB unless told otherwise.
_MAX_BYTES = 1_400_000
# Each time another writer was quicker with the very same value.
_ATTEMPTS = 10


class EtcdTable(Generic[T]):
    """See `kvplane_services.store.ports.Table`. Made by `EtcdStore`.

    Args:
        spec: What it holds.
        intake: This process's copy, and how etcd's words for values come into it.
        keys: Where its values are.
        backend: The etcd client.
        contact: Through which it is asked.
        anchors: Told of anchors that etcd does not have.
        learn: Told what a key of any table was found to hold, or that it held nothing, at a
            revision.

    """

    def __init__(
        self,
        *,
        spec: TableSpec[T],
        intake: Intake[T],
        keys: KeySpace,
        backend: EtcdBackend,
        contact: Contact,
        anchors: EtcdAnchors,
        learn: Callable[[bytes, KeyValue | None, int], None],
    ) -> None:
        self._spec = spec
        self._intake = intake
        self._copy = intake.copy
        self._keys = keys
        self._backend = backend
        self._contact = contact
        self._anchors = anchors
        self._learn = learn

    def __repr__(self) -> str:
        return f"<EtcdTable of {self._spec.name}: {len(self._copy)} values>"

    # -- Callers ---------------------------------------------------------------------------------

    async def get(self, key: str, *, current: bool = False) -> Versioned[T] | None:
        """See `Table.get`."""
        if not current:
            return self._copy.find(key)
        where = self._keys.value(self._spec.name, key)
        header, found = await self._contact.ask(self._backend.get(where))
        self._learn(where, found, header.revision)
        if found is None:
            return None
        value = self._intake.decoded(key, found.value)
        return None if value is None else Versioned(key, value, found.mod_revision)

    async def list(self) -> Snapshot[T]:
        """See `Table.list`."""
        return self._copy.snapshot()

    async def revision(self) -> int:
        """See `Table.revision`."""
        return self._copy.revision

    async def reached(self, revision: int) -> None:
        """See `Table.reached`."""
        await self._copy.reached(revision)

    async def put(
        self, key: str, value: T, *, expected: int | None = None, anchor: str = ""
    ) -> int:
        """See `Table.put`."""
        return await self.commit([Put(key, value, expected, anchor)])

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """See `Table.delete`."""
        _, deleted = await self._commit([Delete(key, expected)], ())
        return deleted

    async def commit(
        self, changes: Sequence[Put[T] | Delete], *, guards: Sequence[Guard] = ()
    ) -> int:
        """See `Table.commit`."""
        check_commit(changes, guards)
        revision, _ = await self._commit(changes, guards)
        return revision

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[T]]:
        """See `Table.watch`."""
        return self._copy.watch(after=after)

    # -- Steps -----------------------------------------------------------------------------------

    async def _commit(
        self, changes: Sequence[Put[T] | Delete], guards: Sequence[Guard]
    ) -> tuple[int, bool]:
        """The revision, and whether anything was deleted."""
        places = [self._keys.value(self._spec.name, change.key) for change in changes]
        data = [self._spec.encode(c.value) if isinstance(c, Put) else b"" for c in changes]
        if sum(map(len, (*places, *data))) > _MAX_BYTES:
            about = {"key": changes[0].key} if len(changes) == 1 else {}
            raise TooLarge(f"etcd takes at most {_MAX_BYTES} bytes at once", **about)
        expected = [change.expected for change in changes]
        guarded = [Compare(self._keys.value(g.table, g.key), g.revision) for g in guards]
        operations = [
            PutOp(place, one, self._lease(change.anchor))
            if isinstance(change, Put)
            else DeleteOp(place)
            for change, place, one in zip(changes, places, data, strict=True)
        ]
        for _ in range(_ATTEMPTS):
            compares = guarded + [
                Compare(place, revision)
                for place, revision in zip(places, expected, strict=True)
                if revision is not None
            ]
            result = await self._write(changes, data, compares, operations)
            if result.succeeded:
                return self._written(changes, result)
            found = {item.key: item for item in result.found}
            for compare in compares:
                self._learn(compare.key, found.get(compare.key), result.header.revision)
            for guard, compare in zip(guards, guarded, strict=True):
                if _revision(found.get(compare.key)) != guard.revision:
                    raise guard_failed(guard)
            held = [
                _held(op, found.get(place)) for op, place in zip(operations, places, strict=True)
            ]
            for index, (change, one) in enumerate(zip(changes, held, strict=True)):
                if change.expected is not None:
                    check_held(change, one)
                    expected[index] = one.revision
            done = done_at(changes, held)
            if done is not None:
                return done, False
        raise Unavailable("another process writes the same values all the time", retry_after=0.1)

    async def _write(
        self,
        changes: Sequence[Put[T] | Delete],
        data: Sequence[bytes],
        compares: Sequence[Compare],
        operations: Sequence[PutOp | DeleteOp],
    ) -> TxnResult:
        puts = [
            (change, one)
            for change, one in zip(changes, data, strict=True)
            if isinstance(change, Put)
        ]
        with self._intake.writing({put.key: (one, put.value) for put, one in puts}):
            try:
                return await self._contact.ask(self._backend.txn(compares, operations))
            except LeaseGone as error:
                anchors = {put.anchor for put, _ in puts if put.anchor}
                self._anchors.suspect(anchors)
                raise anchor_gone(", ".join(sorted(anchors))) from error

    def _written(self, changes: Sequence[Put[T] | Delete], result: TxnResult) -> tuple[int, bool]:
        revision = result.header.revision
        for change in changes:
            if isinstance(change, Put):
                self._copy.learn(change.key, change.value, revision)
            else:
                self._copy.learn_gone(change.key, revision)
        deleted = any(result.deleted)
        if not deleted and not any(isinstance(change, Put) for change in changes):
            # Nothing was written: the revision is that of somebody else's write.
            return self._copy.revision, False
        return revision, deleted

    def _lease(self, anchor: str) -> int:
        if not anchor:
            return 0
        lease = lease_of(anchor)
        if lease is None:
            self._anchors.suspect([anchor])
            raise anchor_gone(anchor)
        return lease


def _revision(found: KeyValue | None) -> int:
    return found.mod_revision if found is not None else 0


def _held(operation: PutOp | DeleteOp, found: KeyValue | None) -> Held:
    if found is None:
        return Held(0, as_wanted=isinstance(operation, DeleteOp))
    as_wanted = isinstance(operation, PutOp) and (found.value, found.lease) == (
        operation.value,
        operation.lease,
    )
    return Held(found.mod_revision, as_wanted=as_wanted)
