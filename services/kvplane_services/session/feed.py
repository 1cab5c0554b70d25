"""Sessions as watches tell of them: what the store has, as a reader sees it."""

from collections.abc import AsyncIterator

from kvplane_services.clock import Clock
from kvplane_services.session.book import SessionBook
from kvplane_services.session.model import Session
from kvplane_services.session.record import PackedRecord, RecordCodec
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.model import Event, Removed, Reset, Synced, Upserted
from kvplane_services.store.ports import Table


class SessionEvents:
    """Translates the events of a table of records; a deleted session is Removed.

    Removed may be told twice: when a session is deleted, and when that is forgotten.
    """

    def __init__(
        self, *, table: Table[PackedRecord], book: SessionBook, codec: RecordCodec, clock: Clock
    ) -> None:
        self._table = table
        self._book = book
        self._codec = codec
        self._feed = TableFeed(table=table, clock=clock)

    def __call__(self) -> AsyncIterator[Event[Session]]:
        """See `Feed`."""
        return self._translated(self._feed(), synced=False)

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[Session]]:
        """See `Table.watch`."""
        return self._translated(self._table.watch(after=after), synced=after > 0)

    async def _translated(
        self, events: AsyncIterator[Event[PackedRecord]], *, synced: bool
    ) -> AsyncIterator[Event[Session]]:
        async for event in events:
            match event:
                case Upserted(key=name, value=packed, revision=revision):
                    record = self._codec.unpack(packed)
                    if not record.deleted:
                        yield Upserted(name, self._book.shown(name, record), revision)
                    elif synced:
                        yield Removed(name, revision)
                case Synced():
                    synced = True
                    yield event
                case Reset():
                    synced = False
                    yield event
                case Removed():
                    yield event
