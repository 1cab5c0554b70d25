"""Two replicas' homes on one store, on a fake clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvplane_services.adapters.records import HOMES
from kvplane_services.engine.homes import EngineHomes
from kvplane_services.store.model import Put
from tests.support.clock import FakeClock
from tests.support.cut_store import CutStore, SharedStore
from tests.support.store_values import TEXTS


class Replica:
    """A replica's homes, and what they told a listener."""

    def __init__(self, name: str, shared: SharedStore) -> None:
        self.store: CutStore = shared.replica()
        self.homes = EngineHomes(
            replica=name,
            table=self.store.table(HOMES),
            anchors=self.store.anchors,
            clock=shared.clock,
        )
        self.texts = self.store.table(TEXTS)
        self.told: list[str] = []
        self.homes.listen(self)

    def home_taken(self, engine_id: str) -> None:
        self.told.append(f"taken {engine_id}")

    def home_lost(self, engine_id: str) -> None:
        self.told.append(f"lost {engine_id}")

    def home_restored(self, engine_id: str) -> None:
        self.told.append(f"restored {engine_id}")

    async def write(self, key: str, value: str, engine_id: str = "d0") -> None:
        """Writes as the engine's home."""
        put = Put(key, value, anchor=self.homes.anchor(engine_id))
        await self.texts.commit([put], guards=[self.homes.guard(engine_id)])


class Pair:
    """Two replicas on one store."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.shared = SharedStore(clock=self.clock)
        self.one = Replica("one", self.shared)
        self.two = Replica("two", self.shared)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            loops = [tasks.create_task(each.homes.run()) for each in (self.one, self.two)]
            await self.settle()
            yield
            for loop in loops:
                loop.cancel()

    async def settle(self) -> None:
        """Lets every task that can go on do so."""
        for _ in range(5):
            await self.clock.advance(0)
