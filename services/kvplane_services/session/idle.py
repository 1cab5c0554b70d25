"""Which sessions without a lease are to be forgotten: when their time is up, or to make room."""

import math
from collections.abc import Callable, Iterator, Mapping

from kvplane_services.clock import Clock
from kvplane_services.session.entry import Entry
from kvplane_services.session.seconds import Seconds

# Places that forgotten sessions may take beyond what is worth the work of tidying up.
_SLACK = 1024


class IdleSessions:
    """Sessions without a lease, by when they are due to be forgotten, and by their last use.

    Args:
        entries: All sessions, by name.
        ttl_of: Idle time of a session, in seconds.
        again: Seconds after which one that was due is looked at again.
        clock: Time.

    """

    def __init__(
        self,
        *,
        entries: Mapping[str, Entry],
        ttl_of: Callable[[Entry], float],
        again: float,
        clock: Clock,
    ) -> None:
        self._entries = entries
        self._ttl_of = ttl_of
        self._again = again
        self._clock = clock
        self._due: Seconds[Entry] = Seconds()
        self._aged: Seconds[Entry] = Seconds()

    def add(self, entry: Entry, *, due_at: float) -> None:
        """Has a session wait that has no lease, or was used without one."""
        self._wait(entry, due_at)
        if not entry.aged:
            self._age(entry)

    def due(self) -> Iterator[Entry]:
        """Sessions without a lease that were not used for their idle time.

        Each is given out again a while later, unless it is gone by then.
        """
        self._tidy()
        now = self._clock.now()
        while (found := self._due.take(until=int(now))) is not None:
            second, entry = found
            if entry.due != second or self._entries.get(entry.name) is not entry:
                continue
            entry.due = 0
            if entry.lease_id:
                continue
            due_at = entry.used_at + self._ttl_of(entry)
            if due_at > now:
                self._wait(entry, due_at)
            else:
                self._wait(entry, now + self._again)
                yield entry

    def oldest(self) -> Entry | None:
        """The session without a lease that was not used for longest, if there is any."""
        while (found := self._aged.take()) is not None:
            second, entry = found
            if entry.aged != second or self._entries.get(entry.name) is not entry:
                continue
            entry.aged = 0
            if entry.lease_id:
                continue
            if int(entry.used_at) > second:
                self._age(entry)
                continue
            return entry
        return None

    def _wait(self, entry: Entry, due_at: float) -> None:
        second = math.ceil(due_at)
        if not entry.due or second < entry.due:
            entry.due = second
            self._due.add(second, entry)

    def _age(self, entry: Entry) -> None:
        entry.aged = int(entry.used_at)
        self._aged.add(entry.aged, entry)

    def _tidy(self) -> None:
        """Lets go of forgotten sessions that still wait for a far-off time."""
        enough = 2 * len(self._entries) + _SLACK
        if len(self._due) <= enough and len(self._aged) <= enough:
            return
        self._due, self._aged = Seconds(), Seconds()
        for entry in sorted(self._entries.values(), key=lambda entry: entry.used_at):
            due, entry.due, entry.aged = entry.due, 0, 0
            if due:
                self._wait(entry, due)
            if not entry.lease_id:
                self._age(entry)
