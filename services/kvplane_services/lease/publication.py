"""Brings what changed in the ledger before those who read and watch leases."""

import logging

from kvplane_services.errors import Unavailable
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import Lease
from kvplane_services.store.journal import Journal
from kvplane_services.store.ports import Table

_log = logging.getLogger(__name__)


class Publication:
    """Writes the ledger's changes to a table, each once and in order."""

    def __init__(self, *, ledger: Ledger, table: Table[Lease]) -> None:
        self._ledger = ledger
        self._journal = Journal(table=table)

    async def publish(self) -> None:
        """Publishes every change so far. Raises Unavailable; the rest is published later."""
        changed, forgotten = self._ledger.take_changes()
        for lease in changed:
            self._journal.put(lease.lease_id, lease)
        for lease_id in forgotten:
            self._journal.delete(lease_id)
        await self._journal.flush()

    async def publish_or_wait(self) -> None:
        """Publishes every change so far, or says that the store is away."""
        try:
            await self.publish()
        except Unavailable as error:
            _log.warning("changes of leases wait for the store: %s", error.message)
