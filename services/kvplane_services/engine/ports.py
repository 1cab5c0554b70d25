"""What the parts of a replica ask about who looks after which engine."""

from typing import Protocol

from kvplane_services.store.journal import Place
from kvplane_services.store.model import Guard

# Name of the table of homes, which guards name.
HOMES_TABLE = "homes"


class HomeListener(Protocol):
    """Told when this replica gains or loses the right to decide about an engine.

    Called by the task that found it out, with the engine's new `guard` and `anchor` in place:
    note what there is to do, and return. Guards made before no longer hold, so that what still
    waits under one is refused, and has to be noted anew.
    """

    def home_taken(self, engine_id: str) -> None:
        """This replica became the engine's home: take its leases up from the store's copy.

        Not called if it was already. The copy may lag behind what the home before wrote last.
        """
        ...

    def home_lost(self, engine_id: str) -> None:
        """Another replica became the engine's home, or nobody: forget it, and end nothing."""
        ...

    def home_restored(self, engine_id: str) -> None:
        """The engine has a new anchor: write all of its keys again.

        Either the store had lost what hung on the old one, or that one lasts too short. Follows
        `home_taken` where both are so; also at an engine's first registration.
        """
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

    def home_of(self, engine_id: str) -> str:
        """Id of the replica that is the engine's home, as far as this one knows; "" for none."""
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

    def ttl(self, engine_id: str) -> float:
        """TTL of the engine's registration, in seconds. Raises KeyError if this is not its home."""
        ...

    async def place_of(self, engine_id: str, *, current: bool = False) -> Place | None:
        """Where an engine's values hang while its home is as it is now, whichever that is.

        For the few changes that any replica may make, by compare-and-set. None if it has no home.

        Args:
            engine_id: Whose.
            current: Ask the store itself, not this process's copy.

        Raises:
            Unavailable: The store cannot be reached; with `current` only.

        """
        ...

    async def take(
        self, engine_id: str, *, ttl: float, renew: bool = False, insist: bool = True
    ) -> None:
        """Makes this replica the engine's home, if it is not.

        Args:
            engine_id: Whose.
            ttl: TTL of its registration, in seconds: its keys outlive this replica by that at
                least. Ignored if a home before knows one, unless `renew`.
            renew: The engine registers: its TTL is the one given here.
            insist: Take it also from a replica that was quicker than this one's copy of the table.

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
