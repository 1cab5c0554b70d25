"""A lease that a holder claims."""

import enum
from dataclasses import dataclass


class LostReason(enum.Enum):
    """Why a kept lease was lost."""

    NOT_FOUND = "not_found"
    FENCED = "fenced"
    DEADLINE = "deadline"


@dataclass(eq=False, slots=True)
class KeptLease:
    """One lease that a keeper claims.

    Attributes:
        name: `leases/{lease}`.
        fencing_token: Token of the grant; send it with every use.
        ttl: Seconds that each claim asks for; 0 for the plane's default.
        deadline: Until when the lease may be used, on the keeper's monotonic clock.
        lost: Why it may not be used any more; None while it may.

    """

    name: str
    fencing_token: int
    ttl: float
    deadline: float
    lost: LostReason | None = None
