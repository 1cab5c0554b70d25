"""What faults do to an engine's time."""

from dataclasses import dataclass

from kvplane_services.clock import Clock

_LOOK_SECONDS = 0.02


@dataclass(slots=True)
class Pace:
    """A factor on every duration, and a stop."""

    factor: float = 1.0
    frozen: bool = False

    async def thawed(self, clock: Clock) -> None:
        """Returns once the engine is not frozen."""
        while self.frozen:
            await clock.sleep(_LOOK_SECONDS)
