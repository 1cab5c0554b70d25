"""The leases of engines whose home is another replica, as the table shows them.

A live lease that vanishes from the table is not over: a store may have lost its data, or an
engine's anchor lapsed while the store stood still. Its home puts it back. So it counts on for a
grace, in which whoever holds it is not turned away.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.lease.newest import Newest


@dataclass(frozen=True, slots=True)
class Seen:
    """A lease and the store revision that it was seen at."""

    lease: Lease
    revision: int


class ElsewhereLeases:
    """Leases by id and by engine; live ones, ended ones that the table has, and vanished ones.

    Args:
        newest: The newest lease of each session, of this replica's engines too.
        grace: How long a live lease counts on that vanished from the table, in seconds.

    """

    def __init__(self, *, newest: Newest, grace: float) -> None:
        self._newest = newest
        self._grace = grace
        self._live: dict[str, Seen] = {}
        # Ids of live and vanished ones.
        self._by_engine: dict[str, set[str]] = {}
        self._ended: dict[str, Lease] = {}
        # What vanished, and until when it counts on.
        self._vanished: OrderedDict[str, tuple[Lease, float]] = OrderedDict()

    def find(self, lease_id: str) -> Lease | None:
        """The live lease of that id, vanished a short time ago at most."""
        seen = self._live.get(lease_id)
        if seen is not None:
            return seen.lease
        vanished = self._vanished.get(lease_id)
        return vanished[0] if vanished else None

    def find_ended(self, lease_id: str) -> Lease | None:
        """The ended lease of that id."""
        return self._ended.get(lease_id)

    def live(self) -> Iterable[Lease]:
        """Every live lease, those that vanished a short time ago too."""
        yield from (seen.lease for seen in self._live.values())
        yield from (lease for lease, _ in self._vanished.values())

    def ended(self) -> Iterable[Lease]:
        """Every ended lease that the table has."""
        return self._ended.values()

    def ids(self) -> set[str]:
        """Ids of all leases that the table has."""
        return {*self._live, *self._ended}

    def put(self, lease: Lease, revision: int) -> None:
        """Takes a lease in, live or ended, as it is written."""
        if lease.state is LeaseState.ENDED:
            self.take(lease.lease_id)
            self._newest.leave(lease.session_key, lease.lease_id)
            self._ended[lease.lease_id] = lease
            return
        self._vanished.pop(lease.lease_id, None)
        self._ended.pop(lease.lease_id, None)
        self._live[lease.lease_id] = Seen(lease, revision)
        self._by_engine.setdefault(lease.engine_id, set()).add(lease.lease_id)
        if lease.state is not LeaseState.ACTIVE:
            self._newest.leave(lease.session_key, lease.lease_id)

    def vanish(self, lease_id: str, now: float) -> None:
        """Notes that the table has a lease no longer."""
        self._ended.pop(lease_id, None)
        seen = self._live.pop(lease_id, None)
        if seen is not None:
            self._vanished[lease_id] = (seen.lease, now + self._grace)

    def take_engine(self, engine_id: str) -> list[Seen]:
        """Takes out and returns the live leases of an engine that this replica looks after now."""
        taken: list[Seen] = []
        for lease_id in self._by_engine.pop(engine_id, ()):
            seen = self._live.pop(lease_id, None)
            if seen is None:
                lease, _ = self._vanished.pop(lease_id)
                seen = Seen(lease, 0)
            taken.append(seen)
        return sorted(taken, key=lambda seen: seen.lease.fencing_token)

    def take(self, lease_id: str) -> None:
        """Takes one lease out that this replica looks after now."""
        self._ended.pop(lease_id, None)
        lease = self.find(lease_id)
        if lease is not None:
            self._live.pop(lease_id, None)
            self._vanished.pop(lease_id, None)
            self._leave_engine(lease)

    def forget_vanished(self, now: float) -> list[str]:
        """Forgets what vanished long ago; returns the ids."""
        forgotten: list[str] = []
        while self._vanished:
            lease_id, (lease, until) = next(iter(self._vanished.items()))
            if until > now:
                break
            del self._vanished[lease_id]
            self._leave_engine(lease)
            self._newest.leave(lease.session_key, lease_id)
            forgotten.append(lease_id)
        return forgotten

    def _leave_engine(self, lease: Lease) -> None:
        leases = self._by_engine.get(lease.engine_id)
        if leases is not None:
            leases.discard(lease.lease_id)
            if not leases:
                del self._by_engine[lease.engine_id]
