"""Follows the leases, and takes into the book of sessions what they mean for each."""

from kvplane_services.clock import Clock
from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.session.book import SessionBook
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.history import Missed
from kvplane_services.session.keeper import Keeper
from kvplane_services.session.saver import Saver
from kvplane_services.store.ports import Feed, Removed, Reset, Synced, Upserted

# Leases taken in before other tasks get their turn.
_AT_ONCE = 256


class LeaseFollower:
    """Brings sessions in line with their leases, and has done at a new lease what was hinted.

    Args:
        leases: All leases, and their changes.
        book: The sessions.
        saver: Writes them down.
        keeper: Claims and releases leases.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        leases: Feed[Lease],
        book: SessionBook,
        saver: Saver,
        keeper: Keeper,
        clock: Clock,
        config: SessionConfig,
    ) -> None:
        self._leases = leases
        self._book = book
        self._saver = saver
        self._keeper = keeper
        self._clock = clock
        self._config = config
        # Live leases that vanished without an end, and since when.
        self._missing: dict[str, float] = {}
        # Revision up to which the leases were seen.
        self._seen = 0

    async def run(self) -> None:
        """Follows the leases until cancelled."""
        # The full state comes by name. It is taken in by grant, oldest first, so that turns are
        # in order.
        collected: dict[str, Upserted[Lease]] | None = {}
        async for event in self._leases():
            match event:
                case Reset():
                    collected = {}
                case Upserted(key=key):
                    if collected is not None:
                        collected[key] = event
                    else:
                        self._take(event.value, event.revision)
                case Removed(key=key):
                    if collected is not None:
                        collected.pop(key, None)
                    else:
                        self._miss(key)
                case Synced(revision=revision):
                    if collected is not None:
                        await self._take_all(collected)
                        collected = None
                    self._seen = max(self._seen, revision)

    def sweep(self) -> None:
        """Gives leases up that vanished and did not come back."""
        longest = self._clock.now() - self._config.lost_grace
        for lease_id, since in tuple(self._missing.items()):
            entry = self._book.holder_of(lease_id)
            if entry is None:
                del self._missing[lease_id]
            elif since <= longest:
                del self._missing[lease_id]
                self._book.take(entry.name, Missed(lease_id))
                self._saver.note(entry.name)

    async def _take_all(self, events: dict[str, Upserted[Lease]]) -> None:
        in_order = sorted(events.values(), key=lambda event: event.value.fencing_token)
        for number, event in enumerate(in_order):
            self._take(event.value, event.revision, seen=self._seen)
            if number % _AT_ONCE == 0:
                await self._clock.sleep(0)
        live = {
            event.value.lease_id for event in in_order if event.value.state is LeaseState.ACTIVE
        }
        for lease_id in self._book.leases() - live:
            self._miss(lease_id)

    def _take(self, lease: Lease, revision: int, *, seen: int | None = None) -> None:
        name = lease.session_key.name
        live = lease.state is LeaseState.ACTIVE
        if self._book.find(name) is None:
            known = self._seen if seen is None else seen
            if lease.state is LeaseState.ENDED and revision <= known:
                return  # Its session was there, and is forgotten.
            self._saver.make_room()
        taken = self._book.take(name, lease)
        self._missing.pop(lease.lease_id, None)
        if live and taken.over:
            self._keeper.release_soon(name, lease)
        elif live:
            if taken.new_turn:
                self._keeper.claim_soon(name)
        else:
            self._keeper.released(lease.lease_id)
        self._saver.note(name)
        if seen is None:
            self._seen = max(self._seen, revision)

    def _miss(self, lease_id: str) -> None:
        self._keeper.released(lease_id)
        if self._book.holder_of(lease_id) is not None:
            self._missing.setdefault(lease_id, self._clock.now())
