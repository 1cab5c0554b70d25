"""What operators watch a store by: whether it answers, and what waits for it."""

from collections.abc import Callable
from dataclasses import dataclass

from kvplane_services.main.parts import LeasesPart, RegistryPart
from kvplane_services.store.ports import Store


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number of the process that its /metrics show.

    Attributes:
        name: With dots, which become underscores.
        description: For people.
        read: The number now.

    """

    name: str
    description: str
    read: Callable[[], float]


def store_gauges(store: Store, *, leases: LeasesPart, registry: RegistryPart) -> tuple[Gauge, ...]:
    """The store as this replica sees it."""

    def pending() -> int:
        parts = (leases.directory, leases.manager, registry.registry)
        return sum(part.unwritten for part in parts)

    return (
        Gauge(
            "kvplane.store.reachable",
            "1 while the store answers this replica, 0 while it is away",
            lambda: int(store.reachable),
        ),
        Gauge(
            "kvplane.store.pending_writes",
            "Changes of this replica's that the store has not taken yet",
            pending,
        ),
    )
