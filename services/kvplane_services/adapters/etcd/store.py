"""The store in etcd, for planes of several replicas.

Promised beyond the port:
- etcd away: reads go on from this process's copies; writes fail within the client's timeout;
  everything else comes back by itself.
- etcd lost its data, or compacted what was not seen yet: the copies start over with what is there,
  and their readers are told to.

Not promised: to notice that etcd was set back to a backup of itself, once others have written more
than was lost. etcd's own tools can raise the revision of a restored backup; let them.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from kvplane_services.adapters.etcd.anchors import EtcdAnchors
from kvplane_services.adapters.etcd.backend import EtcdBackend
from kvplane_services.adapters.etcd.contact import Contact
from kvplane_services.adapters.etcd.intake import Intake
from kvplane_services.adapters.etcd.keys import KeySpace
from kvplane_services.adapters.etcd.mirror import Mirror
from kvplane_services.adapters.etcd.sequence import EtcdSequence
from kvplane_services.adapters.etcd.table import EtcdTable
from kvplane_services.clock import Clock
from kvplane_services.store.model import TableSpec
from kvplane_services.store.table_copy import TableCopy

T = TypeVar("T")

DEFAULT_PREFIX = "/kvplane/v1/"


class EtcdStore:
    """See `kvplane_services.store.ports.Store`. Usable once it is open, alive while it runs.

    Args:
        backend: The etcd client.
        tables: All tables that this process asks for; it holds a copy of each.
        clock: Seeds sequences, times renewals, retries and bookmarks.
        prefix: Of all keys; ends with a slash.
        backlog: Events that each table holds for its watches; a reader that falls behind by
            more is cut.
        bookmark_interval: Seconds between bookmarks on a watch.
        patience: Seconds that a watch waits for a revision that only other replicas have seen.

    """

    def __init__(
        self,
        *,
        backend: EtcdBackend,
        tables: Sequence[TableSpec[Any]],
        clock: Clock,
        prefix: str = DEFAULT_PREFIX,
        backlog: int = 4096,
        bookmark_interval: float = 30.0,
        patience: float = 2.0,
    ) -> None:
        if backlog < 1 or bookmark_interval <= 0:
            raise ValueError("backlog must be at least 1 and bookmark_interval positive")
        self._backend = backend
        self._clock = clock
        self._keys = KeySpace(prefix)
        self._contact = Contact(probe=lambda: backend.get(self._keys.history), clock=clock)
        self._anchors = EtcdAnchors(backend=backend, contact=self._contact, clock=clock)
        self._sequences: dict[str, EtcdSequence] = {}
        intakes: dict[str, Intake[Any]] = {}
        self._mirror = Mirror(
            backend=backend,
            contact=self._contact,
            keys=self._keys,
            intakes=intakes,
            clock=clock,
        )
        self._tables: dict[str, EtcdTable[Any]] = {}
        for spec in tables:
            copy: TableCopy[Any] = TableCopy(
                revision=0,
                clock=clock,
                backlog=backlog,
                bookmark_interval=bookmark_interval,
                patience=patience,
            )
            intakes[spec.name] = Intake(spec=spec, copy=copy)
            self._tables[spec.name] = EtcdTable(
                spec=spec,
                intake=intakes[spec.name],
                keys=self._keys,
                backend=backend,
                contact=self._contact,
                anchors=self._anchors,
                learn=self._mirror.learn,
            )

    @property
    def reachable(self) -> bool:
        """See `Store.reachable`."""
        return self._contact.reachable

    @property
    def anchors(self) -> EtcdAnchors:
        """See `Store.anchors`."""
        return self._anchors

    def table(self, spec: TableSpec[T]) -> EtcdTable[T]:
        """See `Store.table`. Raises ValueError if it is none of those that the store follows."""
        if spec.name not in self._tables:
            raise ValueError(f"this process does not follow the table {spec.name}")
        return cast("EtcdTable[T]", self._tables[spec.name])

    def sequence(self, name: str) -> EtcdSequence:
        """See `Store.sequence`."""
        if name not in self._sequences:
            self._sequences[name] = EtcdSequence(
                key=self._keys.sequence(name),
                backend=self._backend,
                contact=self._contact,
                clock=self._clock,
            )
        return self._sequences[name]

    async def open(self) -> None:
        """Connects, and reads everything.

        Raises:
            StoreRefused: etcd is too old, or does not take the password or certificate.
            Unavailable: It does not answer.

        """
        await self._backend.connect()
        await self._mirror.open()

    async def run(self) -> None:
        """Follows changes and renews anchors, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._contact.run())
            tasks.create_task(self._mirror.run())
            tasks.create_task(self._anchors.run())

    async def close(self) -> None:
        """Ends all connections. Anchors that only this process kept lapse."""
        await self._backend.close()
