"""An operator's order to drain or resume an engine whose home is another replica."""

from dataclasses import replace

from kvplane_services.engine.model import Engine, EngineState
from kvplane_services.engine.ports import Homes
from kvplane_services.errors import Conflict, NotFound
from kvplane_services.store.model import Put
from kvplane_services.store.ports import Table

# Each time the engine's home wrote in between.
_ATTEMPTS = 5


async def order_elsewhere(
    engine_id: str, *, drain: bool, table: Table[Engine], homes: Homes
) -> Engine:
    """Writes the order by compare-and-set; the engine's home sees it and goes by it.

    Raises:
        NotFound: There is no such engine, or it is lost.
        Conflict: The engine changed each time.
        Unavailable: The store cannot be reached.

    """
    for attempt in range(_ATTEMPTS):
        current = attempt > 0
        found = await table.get(engine_id, current=current)
        if found is None or found.value.state is EngineState.LOST:
            if current:
                raise unknown(engine_id)
            continue
        state = EngineState.DRAINING if drain else EngineState.ACTIVE
        ordered = replace(found.value, state=state, drain_requested=drain)
        if ordered == found.value:
            return ordered
        place = await homes.place_of(engine_id, current=current)
        if place is None or place.guard is None:
            continue  # Its home is being put back.
        change = Put(engine_id, ordered, found.revision, place.anchor)
        try:
            await table.commit([change], guards=[place.guard])
        except Conflict:
            continue
        return ordered
    raise Conflict(f"engines/{engine_id} changes all the time: try again")


def unknown(engine_id: str) -> NotFound:
    """What is raised for an engine that is not registered."""
    return NotFound(
        f"there is no engine engines/{engine_id}: it must register first",
        engine=f"engines/{engine_id}",
    )
