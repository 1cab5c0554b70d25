"""Engines at three replicas, and what all of them tell of each."""

from kvplane_services.adapters.records import ENGINES
from kvplane_services.engine.answers import HeartbeatAnswer, HeartbeatOutcome
from kvplane_services.engine.model import Engine, EngineLoad, EngineState
from kvplane_services.engine.registration import DirectoryConfig
from tests.support.state_plane import Replicas
from tests.support.state_values import engine_of


class Fleet(Replicas):
    """Three replicas' directories."""

    def __init__(self, **config: float) -> None:
        super().__init__(3, directory=DirectoryConfig(**config))  # type: ignore[arg-type]

    async def register(self, at: int, engine: Engine | None = None, *, ttl: float = 0.0) -> Engine:
        """Registers an engine, and lets the others see it."""
        registration = await self.planes[at].directory.register(engine or engine_of(), ttl=ttl)
        await self.settle()
        return registration.engine

    async def beat(
        self, at: int, engine: Engine, load: EngineLoad | None = None
    ) -> HeartbeatAnswer:
        """Sends a heartbeat."""
        return await self.planes[at].directory.heartbeat(engine.engine_id, engine.epoch, load)

    async def live(self, at: int, engine: Engine, seconds: float) -> None:
        """Sends heartbeats for a while."""
        for _ in range(round(seconds)):
            assert (await self.beat(at, engine)).outcome is HeartbeatOutcome.RENEWED
            await self.advance(1)

    def states(self, engine_id: str = "d0") -> list[EngineState | None]:
        """The engine's state as each replica tells it."""
        found = [plane.directory.find(engine_id) for plane in self.planes]
        return [engine.state if engine else None for engine in found]

    def home(self, engine_id: str = "d0") -> list[bool]:
        """Which replica believes that it is the engine's home."""
        return [plane.homes.is_home(engine_id) for plane in self.planes]

    def left(self) -> set[tuple[str, str]]:
        """What of engines hangs on any anchor."""
        hanging = {value for anchor in self.shared.anchors.values() for value in anchor.values}
        return {(table, key) for table, key in hanging if table in {"engines", "homes"}}

    def hangs_on_its_home(self, engine_id: str) -> bool:
        """Whether an engine hangs on the anchor that its home keeps."""
        home = self.planes[self.home(engine_id).index(True)].homes
        return ("engines", engine_id) in self.shared.anchors[home.anchor(engine_id)].values

    async def stored(self, engine_id: str = "d0") -> Engine | None:
        """What the store holds."""
        found = await self.shared.memory.table(ENGINES).get(engine_id)
        return found.value if found else None


ALIVE = [EngineState.ACTIVE] * 3
LOAD = EngineLoad(running_requests=7)
