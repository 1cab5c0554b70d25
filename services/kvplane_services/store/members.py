"""Which processes of the plane are alive, and which of them looks after what.

Each process writes itself into a table, on an anchor of its own, and follows that table. Work
that one of several has to do, such as looking after a session, goes to the one that a digest
picks of those alive; all pick the same while they see the same.

Not promised: that all see the same at every moment. For a while two may look after the same
thing, or nobody; whatever they write must be safe then too.
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvplane_services.clock import Clock, jittered, within
from kvplane_services.errors import Conflict, Unavailable, logged
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.model import Removed, Reset, Synced, Upserted
from kvplane_services.store.ports import Anchors, Table

_log = logging.getLogger(__name__)

# How long a process that stops waits for the store to take its entry away, in seconds.
_LEAVE_WITHIN = 0.5


@dataclass(frozen=True, slots=True)
class Member:
    """What a process says of itself: which kinds of work it shares."""

    roles: tuple[str, ...]


class Members:
    """This process's entry among the members, and who else is alive.

    Args:
        member_id: Id of this process, of it alone.
        member: What it says of itself.
        table: Where members are written.
        anchors: What this process's entry hangs on.
        clock: Time.
        ttl: Seconds that the entry outlives the process, at least.
        grace: Seconds for which members that are not there when the table starts over still
            count: the store may have lost them, and they put themselves back.

    """

    def __init__(
        self,
        *,
        member_id: str,
        member: Member,
        table: Table[Member],
        anchors: Anchors,
        clock: Clock,
        ttl: float = 10.0,
        grace: float = 10.0,
    ) -> None:
        self._id = member_id
        self._member = member
        self._table = table
        self._anchors = anchors
        self._clock = clock
        self._ttl = ttl
        self._grace = grace
        self._known: dict[str, Member] = {member_id: member}
        # Members that were not there when the table started over, and until when they count.
        self._doubtful: dict[str, float] = {}
        # Answers, until the members change.
        self._live: dict[str, tuple[str, ...]] = {}
        self._anchor = ""
        self._absent = asyncio.Event()
        self._absent.set()
        self._listeners: list[Callable[[], None]] = []

    @property
    def member_id(self) -> str:
        """Id of this process."""
        return self._id

    def live(self, role: str) -> tuple[str, ...]:
        """Ids of the live members of a role, this process's own included if it has it."""
        if self._doubtful:
            self._drop_doubtful()
        live = self._live.get(role)
        if live is None:
            known = self._known.items()
            live = tuple(sorted(key for key, member in known if role in member.roles))
            self._live[role] = live
        return live

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever a member comes or goes."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Is a member until cancelled, and follows the others."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._stay())
                tasks.create_task(self._follow())
        finally:
            # Others need not wait for the anchor to lapse.
            with contextlib.suppress(Unavailable, TimeoutError):
                await within(self._leave(), _LEAVE_WITHIN, clock=self._clock)

    # -- This process ------------------------------------------------------------------------

    async def _stay(self) -> None:
        while True:
            await self._absent.wait()
            try:
                await self._enter()
                self._absent.clear()
            except Conflict:
                await self._clock.sleep(jittered(1.0))  # The new anchor is gone again.
            except Unavailable as error:
                _log.warning("this replica is not known to others yet: %s", logged(error))
                await self._clock.sleep(jittered(error.retry_after))

    async def _enter(self) -> None:
        old, self._anchor = self._anchor, await self._anchors.open(self._ttl)
        if old:
            self._anchors.drop(old)
        await self._table.put(self._id, self._member, anchor=self._anchor)

    async def _leave(self) -> None:
        if self._anchor:
            self._anchors.drop(self._anchor)
            await self._table.delete(self._id)
            await self._anchors.revoke(self._anchor)

    # -- The others --------------------------------------------------------------------------

    async def _follow(self) -> None:
        unseen: set[str] = set()
        async for event in TableFeed(table=self._table, clock=self._clock)():
            match event:
                case Upserted(key=key, value=member):
                    unseen.discard(key)
                    self._doubtful.pop(key, None)
                    self._take(key, member)
                case Removed(key=key):
                    unseen.discard(key)
                    self._doubtful.pop(key, None)
                    self._take(key, None)
                    await self._look()
                case Reset():
                    unseen = set(self._known)
                case Synced():
                    until = self._clock.now() + self._grace
                    self._doubtful.update(dict.fromkeys(unseen - {self._id}, until))
                    unseen.clear()
                    await self._look()

    def _take(self, key: str, member: Member | None) -> None:
        if key == self._id or self._known.get(key) == member:
            return
        if member is None:
            del self._known[key]
        else:
            self._known[key] = member
        self._live.clear()
        for listener in self._listeners:
            listener()

    def _drop_doubtful(self) -> None:
        now = self._clock.now()
        for member_id in [key for key, until in self._doubtful.items() if until <= now]:
            del self._doubtful[member_id]
            self._known.pop(member_id, None)
            self._live.clear()

    async def _look(self) -> None:
        # The copy is never behind this process's own writes, as an event on its way may be.
        if self._anchor and await self._table.get(self._id) is None:
            self._absent.set()


def keeper_of(name: str, members: Sequence[str]) -> str:
    """The member that looks after what has that name. Pure: rendezvous hashing.

    When a member comes or goes, only what it looks after changes hands.

    Raises:
        ValueError: There are no members.

    """
    if len(members) == 1:
        return members[0]
    encoded = name.encode()
    return max(members, key=lambda member: (_score(encoded, member), member))


def _score(name: bytes, member: str) -> bytes:
    return hashlib.blake2b(name, digest_size=8, person=_person(member)).digest()


@functools.lru_cache(maxsize=256)
def _person(member: str) -> bytes:
    return hashlib.blake2b(member.encode(), digest_size=16).digest()
