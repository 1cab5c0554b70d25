"""Which of the registry's replicas looks after a session."""

from kvplane_services.store.members import Members, keeper_of

# What members that follow leases and sessions have among their roles.
ROLE = "registry"


class Shares:
    """Every replica knows all sessions; one writes down what leases say of each, and acts on it.

    Not promised: that it is one at every moment. See `kvplane_services.store.members`.
    """

    def __init__(self, members: Members) -> None:
        self._members = members

    def mine(self, session: str) -> bool:
        """Whether this replica looks after the session of that full name."""
        return keeper_of(session, self._members.live(ROLE)) == self._members.member_id
