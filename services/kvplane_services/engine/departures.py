"""Registrations that ended at this replica, until nothing of them is left in the store."""

from dataclasses import dataclass

from kvplane_services.engine.model import Engine
from kvplane_services.engine.ports import Homes


@dataclass(slots=True)
class _Ended:
    epoch: int
    at: float
    left: bool = False


class Departures:
    """Ended registrations by engine id, each up to an epoch.

    What the store still tells of them does not count here any more. The replica stays home for a
    while, so that what hangs on the engine can be ended under its guard, and then leaves.

    Args:
        homes: Which replica looks after which engine.
        stay: Seconds that the replica stays home.
        remember: Seconds that an end is remembered.

    """

    def __init__(self, *, homes: Homes, stay: float, remember: float) -> None:
        self._homes = homes
        self._stay = stay
        self._remember = remember
        self._ended: dict[str, _Ended] = {}

    def note(self, engine_id: str, epoch: int, now: float) -> None:
        """Notes that what was registered up to an epoch is over."""
        self._ended[engine_id] = _Ended(epoch, now)

    def doubt(self, engine_id: str, now: float) -> None:
        """Notes that this replica may be home of an engine of which nothing is registered."""
        self._ended.setdefault(engine_id, _Ended(0, now))

    def cancel(self, engine_id: str) -> None:
        """Notes that the engine lives here again."""
        self._ended.pop(engine_id, None)

    def standing(self, engine: Engine | None) -> Engine | None:
        """The engine, unless its registration is over."""
        ended = self._ended.get(engine.engine_id) if engine else None
        return None if ended and engine and engine.epoch <= ended.epoch else engine

    async def leave(self, now: float) -> None:
        """Leaves the engines whose time has come. Raises Unavailable; the rest is left later."""
        for engine_id, ended in tuple(self._ended.items()):
            if not ended.left and now >= ended.at + self._stay:
                await self._homes.leave(engine_id)
                ended.left = True
            elif ended.left and now >= ended.at + self._remember:
                del self._ended[engine_id]
