"""What operators watch leases by: how many ended, and why."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvplane_services.main.parts import LeasesPart


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of the process that only grow, told apart by a label, that its /metrics show.

    Attributes:
        name: With dots, which become underscores.
        description: For people.
        label: Name of the label.
        read: The number now, by the label's value.

    """

    name: str
    description: str
    label: str
    read: Callable[[], Mapping[str, int]]


def lease_tallies(leases: LeasesPart) -> tuple[Tally, ...]:
    """The leases of this replica's engines."""
    return (
        Tally(
            "kvplane.leases.ended",
            "Leases that ended, by why; each is counted at its engine's home",
            "reason",
            lambda: {reason.value: count for reason, count in leases.manager.ends.items()},
        ),
    )
