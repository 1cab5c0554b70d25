"""Anchors that nobody keeps, for what is to vanish by itself after a while."""

from kvplane_services.clock import Clock
from kvplane_services.store.ports import Anchors

# For how long values go on an anchor before the next one is opened, in seconds.
_SHARED_FOR = 60.0


class LapsingAnchor:
    """An anchor on which values stay for `keep` seconds at least, whatever becomes of this process.

    Values of about the same time share one, which is why they may stay somewhat longer.

    Args:
        anchors: The store's.
        keep: Seconds.
        clock: Time.

    """

    def __init__(self, *, anchors: Anchors, keep: float, clock: Clock) -> None:
        self._anchors = anchors
        self._keep = keep
        self._clock = clock
        self._name = ""
        self._until = 0.0

    @property
    def name(self) -> str:
        """The anchor that `ready` has made; empty before."""
        return self._name

    async def ready(self) -> str:
        """Makes sure that there is an anchor for values written now. Raises Unavailable."""
        if not self._name or self._clock.now() >= self._until:
            self._name = await self._anchors.open(self._keep + 2 * _SHARED_FOR, keep=False)
            self._until = self._clock.now() + _SHARED_FOR
        return self._name

    def lost(self, anchor: str) -> None:
        """Notes that the store has an anchor no longer."""
        if anchor == self._name:
            self._name = ""
