"""All engines as the store has them, whoever their home is."""

from collections.abc import Callable, Iterator

from kvplane_services.clock import Clock
from kvplane_services.engine.model import Engine
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.model import Removed, Reset, Synced, Upserted, Versioned
from kvplane_services.store.ports import Table


class SeenEngines:
    """Follows the table of engines, for those who cannot wait for it.

    One that vanished is remembered for a while: the store may have lost it, and its next heartbeat
    puts it back.

    Args:
        table: Where registrations are published.
        clock: Time.
        remember: Seconds that a vanished engine is remembered.
        on_seen: Told the id and what the table's copy holds, whenever that may have changed.

    """

    def __init__(
        self,
        *,
        table: Table[Engine],
        clock: Clock,
        remember: float,
        on_seen: Callable[[str, Versioned[Engine] | None], None],
    ) -> None:
        self._table = table
        self._clock = clock
        self._remember = remember
        self._on_seen = on_seen
        self._engines: dict[str, Engine] = {}
        # With the time until which they are remembered, which is in the order of the entries.
        self._vanished: dict[str, tuple[float, Engine]] = {}

    def find(self, engine_id: str) -> Engine | None:
        """The engine as last seen, or None."""
        return self._engines.get(engine_id)

    def vanished(self, engine_id: str) -> Engine | None:
        """The engine as it was before it vanished, a short while ago; else None."""
        self._forget()
        found = self._vanished.get(engine_id)
        return found[1] if found else None

    def all(self) -> Iterator[Engine]:
        """All engines as last seen."""
        return iter(tuple(self._engines.values()))

    async def run(self) -> None:
        """Follows the table until cancelled."""
        unseen: set[str] = set()
        async for event in TableFeed(table=self._table, clock=self._clock)():
            match event:
                case Upserted(key=engine_id) | Removed(key=engine_id):
                    unseen.discard(engine_id)
                    await self._look(engine_id)
                case Reset():
                    unseen = set(self._engines)
                case Synced():
                    for engine_id in unseen:
                        await self._look(engine_id)
                    unseen.clear()

    async def _look(self, engine_id: str) -> None:
        # Not the event's value: the copy is never behind this replica's own writes.
        found = await self._table.get(engine_id)
        if found is not None:
            self._engines[engine_id] = found.value
            self._vanished.pop(engine_id, None)
        else:
            before = self._engines.pop(engine_id, None)
            if before is not None:
                self._vanished[engine_id] = (self._clock.now() + self._remember, before)
        self._forget()
        self._on_seen(engine_id, found)

    def _forget(self) -> None:
        while self._vanished:
            engine_id, (until, _) = next(iter(self._vanished.items()))
            if until > self._clock.now():
                return
            del self._vanished[engine_id]
