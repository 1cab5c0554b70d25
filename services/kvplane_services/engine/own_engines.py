"""The engines whose home is this replica: when each is due, and what of it is to be written.

Heartbeats move deadlines here and nowhere else. What others are to see is noted in a journal,
and written under the home's guard: nothing is, once another replica is home.
"""

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvplane_services.clock import Clock
from kvplane_services.deadlines import Deadlines
from kvplane_services.engine.model import Engine, EngineLoad, EngineState
from kvplane_services.engine.ports import Homes
from kvplane_services.engine.registration import DirectoryConfig
from kvplane_services.store.journal import Journal, Place
from kvplane_services.store.model import Versioned
from kvplane_services.store.ports import Table


@dataclass(slots=True)
class _Own:
    engine: Engine
    ttl: float
    # Its state was decided here, and has not been seen in the table yet.
    decided: bool = False
    # What it hangs on while it is lost.
    lost_anchor: str = ""


class OwnEngines:
    """Registrations by engine id, with their deadlines.

    Args:
        homes: Guards and anchors.
        table: Where registrations are published.
        clock: Time.
        config: Durations.
        on_refused: Told the id of an engine of which the store did not take a change.

    """

    def __init__(
        self,
        *,
        homes: Homes,
        table: Table[Engine],
        clock: Clock,
        config: DirectoryConfig,
        on_refused: Callable[[str], None],
    ) -> None:
        self._homes = homes
        self._clock = clock
        self._config = config
        self.journal = Journal(
            table=table,
            checked=True,
            on_refused=lambda engine_id, _: on_refused(engine_id),
            place=self._place,
        )
        self._own: dict[str, _Own] = {}
        # When a live engine is lost, and when a lost one is forgotten.
        self._deadlines = Deadlines()
        # Engines whose load is newer than the table's, and when loads were last written.
        self._loads: dict[str, None] = {}
        self._loads_written = float("-inf")

    def __contains__(self, engine_id: str) -> bool:
        """Whether it is one of them."""
        return engine_id in self._own

    def find(self, engine_id: str) -> Engine | None:
        """The engine with its present deadline, or None."""
        own = self._own.get(engine_id)
        return self._stamped(own.engine) if own else None

    def is_lost(self, engine_id: str) -> bool:
        """Whether it is one of them, and lost."""
        own = self._own.get(engine_id)
        return own is not None and own.engine.state is EngineState.LOST

    def ids(self) -> tuple[str, ...]:
        """Ids of all of them."""
        return tuple(self._own)

    def hanging_on(self, anchor: str) -> Iterator[str]:
        """Ids of lost engines that hang on an anchor."""
        return (engine_id for engine_id, own in self._own.items() if own.lost_anchor == anchor)

    def ttl(self, engine_id: str) -> float:
        """TTL of a registration, in seconds."""
        return self._own[engine_id].ttl

    def enter(self, engine: Engine, *, ttl: float) -> None:
        """Takes an engine up as it is, alive for a TTL from now. Writes nothing."""
        self._own[engine.engine_id] = _Own(replace(engine, expire_time=None), ttl)
        lost = engine.state is EngineState.LOST
        self._deadline(engine.engine_id, self._config.remember_lost if lost else ttl)

    def extend(self, engine_id: str) -> None:
        """Notes a heartbeat."""
        self._deadline(engine_id, self._own[engine_id].ttl)

    def register(self, engine: Engine, *, ttl: float) -> None:
        """Takes a new registration up, and notes it to be written."""
        self.enter(engine, ttl=ttl)
        self._own[engine.engine_id].decided = True
        self._note(engine.engine_id)

    def decide(self, engine_id: str, state: EngineState, *, drain: bool) -> None:
        """Changes an engine's state, and notes it to be written if it differs."""
        own = self._own[engine_id]
        if (own.engine.state, own.engine.drain_requested) == (state, drain):
            return
        own.engine = replace(own.engine, state=state, drain_requested=drain)
        own.decided = True
        self._note(engine_id)

    def lose(self, engine_id: str) -> Engine:
        """Calls an engine lost. It is written once it has an anchor for that, see `hang_lost`."""
        own = self._own[engine_id]
        own.engine = replace(own.engine, state=EngineState.LOST)
        own.decided = True
        own.lost_anchor = ""
        self._deadline(engine_id, self._config.remember_lost)
        return own.engine

    def hang_lost(self, engine_id: str, anchor: str) -> None:
        """Notes a lost engine to be written on an anchor, which lapses by itself."""
        self._own[engine_id].lost_anchor = anchor
        self._note(engine_id)

    def load(self, engine_id: str, load: EngineLoad) -> bool:
        """Takes a load in; tells whether it was noted to be written."""
        own = self._own[engine_id]
        if own.engine.load == load:
            return False
        own.engine = replace(own.engine, load=load)
        self._loads[engine_id] = None
        return self.note_loads()

    def note_loads(self) -> bool:
        """Notes all loads that changed, unless some were lately; tells whether it did."""
        now = self._clock.now()
        if not self._loads or now - self._loads_written < self._config.load_interval:
            return False
        self._loads_written = now
        for engine_id in tuple(self._loads):
            self._note(engine_id)
        return True

    def end(self, engine_id: str) -> None:
        """Forgets an engine, and notes that its registration is over."""
        self._forget(engine_id)
        self.journal.delete(engine_id)

    def rewrite(self, engine_id: str) -> None:
        """Notes an engine to be written on its home's new anchor."""
        if self._own[engine_id].engine.state is not EngineState.LOST:
            self._note(engine_id)

    def drop(self, engine_id: str) -> bool:
        """Forgets an engine that is somebody else's now; tells whether there was one."""
        self.journal.forget(engine_id)
        return self._forget(engine_id)

    def pop_due(self, now: float) -> list[str]:
        """Ids of engines whose deadline has come; each needs another, or an end."""
        return [engine_id for engine_id in self._deadlines.pop_due(now) if engine_id in self._own]

    def seen(self, found: Versioned[Engine]) -> bool:
        """Takes in what the table holds of an engine; tells whether it must be asked again.

        Another replica may have had it drain or resume.
        """
        own = self._own[found.key]
        if found.value.epoch != own.engine.epoch:
            return found.value.epoch > own.engine.epoch
        if _decision(found.value) == _decision(own.engine):
            own.decided = False
        else:
            self.reconcile(found.key, found)
        return False

    def reconcile(self, engine_id: str, found: Versioned[Engine] | None) -> None:
        """Goes on from what the store itself holds of an engine, and has it put right."""
        own = self._own[engine_id]
        self.journal.adopt(engine_id, found.revision if found else 0)
        if found is not None and found.value.epoch > own.engine.epoch:
            self.enter(found.value, ttl=self._homes.ttl(engine_id))
            return
        if found is not None and found.value.epoch == own.engine.epoch and not own.decided:
            state, drain = _decision(found.value)
            own.engine = replace(own.engine, state=state, drain_requested=drain)
            if state is EngineState.LOST:
                self._deadline(engine_id, self._config.remember_lost)
        if found is None or found.value != own.engine:
            self._note(engine_id)

    # -- Steps -------------------------------------------------------------------------------

    def _note(self, engine_id: str) -> None:
        own = self._own[engine_id]
        self._loads.pop(engine_id, None)
        if own.engine.state is EngineState.LOST and not own.lost_anchor:
            return
        # Without its deadline, which heartbeats move and nobody writes.
        self.journal.put(engine_id, own.engine)

    def _place(self, engine_id: str, engine: Engine | None) -> Place | None:
        if not self._homes.is_home(engine_id):
            return None
        guard = self._homes.guard(engine_id)
        if engine is None:
            return Place(guard=guard)
        if engine.state is EngineState.LOST:
            return Place(self._own[engine_id].lost_anchor, guard)
        return Place(self._homes.anchor(engine_id), guard)

    def _deadline(self, engine_id: str, seconds: float) -> None:
        self._deadlines.set(engine_id, self._clock.now() + seconds)

    def _forget(self, engine_id: str) -> bool:
        self._deadlines.drop(engine_id)
        self._loads.pop(engine_id, None)
        return self._own.pop(engine_id, None) is not None

    def _stamped(self, engine: Engine) -> Engine:
        deadline = self._deadlines.get(engine.engine_id)
        if deadline is None or engine.state is EngineState.LOST:
            return replace(engine, expire_time=None)
        left = dt.timedelta(seconds=deadline - self._clock.now())
        return replace(engine, expire_time=self._clock.wall() + left)


def _decision(engine: Engine) -> tuple[EngineState, bool]:
    return engine.state, engine.drain_requested
