"""What the parts of a replica ask about who looks after which engine."""

from typing import Protocol

from kvplane_services.store.ports import Guard


class HomeListener(Protocol):
    """Told when this replica gains or loses the right to decide about an engine."""

    def home_taken(self, engine_id: str) -> None:
        """This replica became the engine's home: take its leases up from the store's copy."""
        ...

    def home_lost(self, engine_id: str) -> None:
        """Another replica became the engine's home, or nobody: forget it, and end nothing."""
        ...

    def home_restored(self, engine_id: str) -> None:
        """The store had lost the engine's keys: write all of them again."""
        ...


class Homes(Protocol):
    """Which replica each engine's heartbeats come to: its home.

    Only the home decides about an engine's registration and leases, and every write about them
    carries its guard, so that one that was replaced unawares writes nothing. Which replica is
    home is moved by compare-and-set, by the one that an engine opened its stream to.

    Not promised: that a home knows at once that it was replaced. Its guard does.
    """

    @property
    def replica(self) -> str:
        """Id of this replica."""
        ...

    def is_home(self, engine_id: str) -> bool:
        """Whether this replica is the engine's home, as far as it knows."""
        ...

    def elsewhere(self, engine_id: str) -> bool:
        """Whether another replica is the engine's home, as far as this one knows."""
        ...

    def guard(self, engine_id: str) -> Guard:
        """Guard of writes that only the engine's home may make. Raises KeyError if this is not."""
        ...

    def anchor(self, engine_id: str) -> str:
        """What the engine's keys hang on. Raises KeyError if this is not its home."""
        ...

    async def take(self, engine_id: str, *, ttl: float) -> None:
        """Makes this replica the engine's home, if it is not.

        Args:
            engine_id: Whose.
            ttl: Seconds that the engine's keys are to outlive this replica, at least.

        Raises:
            Conflict: Another replica took it at the same time. The engine chooses by its stream.
            Unavailable: The store cannot be reached.

        """
        ...

    async def leave(self, engine_id: str) -> None:
        """Nobody's any more: what still hangs on the engine's anchor is removed.

        Raises:
            Unavailable: The store cannot be reached.

        """
        ...

    def listen(self, listener: HomeListener) -> None:
        """Adds a listener, called in the order in which they were added."""
        ...
