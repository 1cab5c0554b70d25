"""What clients change of a session: decided here, and written only over what it was decided on."""

from collections.abc import Awaitable, Callable

from kvplane_services.clock import Clock, within
from kvplane_services.errors import Conflict, Unavailable
from kvplane_services.session.book import SessionBook
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.entry import Entry
from kvplane_services.session.record import PackedRecord, RecordCodec, SessionRecord
from kvplane_services.session.saver import Saver
from kvplane_services.store.commits import store_away
from kvplane_services.store.ports import Table

# What to make of a session; None for nothing. It is given None for one that was never seen.
Decide = Callable[[SessionRecord | None], Awaitable[SessionRecord | None]]

# Times that a change is decided anew because others changed the session meanwhile.
_ATTEMPTS = 10
_RETRY_AFTER = 1.0


class Changes:
    """Makes changes one session at a time, at whichever replica they are asked for.

    Args:
        table: Where sessions are written.
        reachable: Whether the store is likely to answer.
        book: The sessions.
        codec: Writes records down.
        saver: Reads again what others changed.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        table: Table[PackedRecord],
        reachable: Callable[[], bool],
        book: SessionBook,
        codec: RecordCodec,
        saver: Saver,
        clock: Clock,
        config: SessionConfig,
    ) -> None:
        self._table = table
        self._reachable = reachable
        self._book = book
        self._codec = codec
        self._saver = saver
        self._clock = clock
        self._config = config

    async def make(self, name: str, decide: Decide) -> SessionRecord | None:
        """Writes what `decide` makes of a session, and returns the session as it is then.

        It is called again where others changed the session between its look and the write.

        Raises:
            Unavailable: The store cannot be reached, or others change the session all the time.
                Whether it was written is unknown.

        """
        for _ in range(_ATTEMPTS):
            entry = await self._find(name)
            before = None if entry is None else self._book.record_of(entry)
            revision = 0 if entry is None else entry.revision
            after = await decide(before)
            if after is None or after == before:
                return before
            try:
                await within(
                    self._write(name, after, revision), self._config.store_wait, clock=self._clock
                )
            except Conflict:
                await self._saver.read_again(name)
            except TimeoutError:
                raise store_away() from None
            else:
                found = self._book.find(name)
                return after if found is None else self._book.record_of(found)
        raise Unavailable(
            f"{name} is changed by others all the time: nothing was changed, retry",
            retry_after=_RETRY_AFTER,
        )

    async def _find(self, name: str) -> Entry | None:
        entry = self._book.find(name)
        if entry is None and (found := await self._table.get(name)) is not None:
            # Forgotten here to make room, or not yet heard of.
            self._book.adopt(name, found.value, found.revision)
            entry = self._book.find(name)
        return entry

    async def _write(self, name: str, record: SessionRecord, expected: int) -> None:
        if not self._reachable():
            raise store_away()
        packed = self._codec.pack(self._book.stamped(record))
        revision = await self._table.put(name, packed, expected=expected)
        self._book.adopt(name, packed, revision)
