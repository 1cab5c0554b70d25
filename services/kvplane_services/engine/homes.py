"""Which replica is an engine's home: taken over by compare-and-set, and put back when it is lost.

An engine's keys hang on one anchor, which its home keeps alive and hands on to the next home by
name. So they outlive a replica that dies for as long as the engine may take to find another, and
vanish if it does not.

Not promised: that a replica which was cut from the store knows that its engines moved. What it
writes then carries a guard that no longer holds.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from kvplane_services.clock import Clock, jittered
from kvplane_services.engine.model import Home
from kvplane_services.engine.ports import HOMES_TABLE, HomeListener
from kvplane_services.errors import Conflict, Unavailable, logged
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.journal import Place
from kvplane_services.store.model import Guard, Removed, Reset, Synced, Upserted, Versioned
from kvplane_services.store.ports import Anchors, Table

_log = logging.getLogger(__name__)

# An anchor that is kept every third of its TTL has two thirds left when its keeper dies.
_ANCHOR_SHARE = 1.5
# Seconds after which a home is put back that somebody else wrote at the same time.
_LOOK_AGAIN = 0.5


@dataclass(frozen=True, slots=True)
class _Held:
    home: Home
    revision: int


class EngineHomes:
    """See `Homes`.

    Args:
        replica: Id of this replica, of this process alone.
        table: Where homes are written.
        anchors: What engines' keys hang on.
        clock: Times retries.

    """

    def __init__(self, *, replica: str, table: Table[Home], anchors: Anchors, clock: Clock) -> None:
        self._replica = replica
        self._table = table
        self._anchors = anchors
        self._clock = clock
        self._listeners: list[HomeListener] = []
        self._own: dict[str, _Held] = {}
        # Homes of all engines as last seen, for those who cannot wait for the table.
        self._seen: dict[str, Home] = {}
        # Anchors of own engines that the store no longer has, and engines to be put back.
        self._gone: set[str] = set()
        self._broken: dict[str, None] = {}
        self._mending = asyncio.Event()
        # One change of an engine's home at a time, or two could each believe in their own.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def replica(self) -> str:
        """See `Homes.replica`."""
        return self._replica

    def is_home(self, engine_id: str) -> bool:
        """See `Homes.is_home`."""
        return engine_id in self._own

    def home_of(self, engine_id: str) -> str:
        """See `Homes.home_of`."""
        if engine_id in self._own:
            return self._replica
        seen = self._seen.get(engine_id)
        # What was seen of this replica is of a time before it lost the engine.
        return "" if seen is None or seen.replica == self._replica else seen.replica

    def elsewhere(self, engine_id: str) -> bool:
        """See `Homes.elsewhere`."""
        return self.home_of(engine_id) not in ("", self._replica)

    def guard(self, engine_id: str) -> Guard:
        """See `Homes.guard`."""
        return Guard(HOMES_TABLE, engine_id, self._own[engine_id].revision)

    def anchor(self, engine_id: str) -> str:
        """See `Homes.anchor`."""
        return self._own[engine_id].home.anchor

    def ttl(self, engine_id: str) -> float:
        """See `Homes.ttl`."""
        return self._own[engine_id].home.engine_ttl

    def listen(self, listener: HomeListener) -> None:
        """See `Homes.listen`."""
        self._listeners.append(listener)

    async def place_of(self, engine_id: str, *, current: bool = False) -> Place | None:
        """See `Homes.place_of`."""
        found = await self._table.get(engine_id, current=current)
        if found is None:
            return None
        return Place(found.value.anchor, Guard(HOMES_TABLE, engine_id, found.revision))

    async def take(
        self, engine_id: str, *, ttl: float, renew: bool = False, insist: bool = True
    ) -> None:
        """See `Homes.take`."""
        async with self._lock_of(engine_id):
            own = self._own.get(engine_id)
            if own is not None and (not renew or own.home.engine_ttl == ttl):
                return
            seen = await self._table.get(engine_id)
            try:
                moved = await self._put(engine_id, seen, ttl, renew=renew)
            except Conflict:
                if not insist:
                    raise
                # Decided on an old copy.
                seen = await self._table.get(engine_id, current=True)
                moved = await self._put(engine_id, seen, ttl, renew=renew)
            if own is None:
                for listener in self._listeners:
                    listener.home_taken(engine_id)
            if moved:
                for listener in self._listeners:
                    listener.home_restored(engine_id)
            # Another replica's take may have been told before the answer to this one's came.
            await self._look(engine_id)
            if engine_id not in self._own:
                raise Conflict(f"engines/{engine_id} moved on at once")

    async def leave(self, engine_id: str) -> None:
        """See `Homes.leave`."""
        async with self._lock_of(engine_id):
            own = self._own.get(engine_id)
            if own is None:
                return
            try:
                await self._table.delete(engine_id, expected=own.revision)
            except Conflict:
                # Another replica's, or its keys are being put back: not ours to remove.
                self._lose(engine_id)
                return
            self._lose(engine_id)
            await self._anchors.revoke(own.home.anchor)

    async def run(self) -> None:
        """Follows the homes, and puts back what the store lost, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._follow_anchors())
            tasks.create_task(self._mend())

    # -- Taking ------------------------------------------------------------------------------

    async def _put(
        self, engine_id: str, seen: Versioned[Home] | None, ttl: float, *, renew: bool
    ) -> bool:
        """Writes this replica in; tells whether the engine's keys must move to a new anchor."""
        before = seen.value if seen else None
        engine_ttl = ttl if renew or before is None else before.engine_ttl
        home = Home(
            replica=self._replica,
            anchor=before.anchor if before else "",
            anchor_ttl=before.anchor_ttl if before else 0.0,
            engine_ttl=engine_ttl,
        )
        if moves := home.anchor in self._gone or home.anchor_ttl < engine_ttl * _ANCHOR_SHARE:
            home = await self._on_new_anchor(home)
        else:
            self._anchors.keep(home.anchor, home.anchor_ttl)
        await self._write(engine_id, home, expected=seen.revision if seen else 0)
        return moves

    async def _on_new_anchor(self, home: Home) -> Home:
        anchor_ttl = home.engine_ttl * _ANCHOR_SHARE
        return replace(home, anchor=await self._anchors.open(anchor_ttl), anchor_ttl=anchor_ttl)

    async def _write(self, engine_id: str, home: Home, *, expected: int) -> None:
        own = self._own.get(engine_id)
        try:
            revision = await self._table.put(engine_id, home, expected=expected, anchor=home.anchor)
        except (Conflict, Unavailable):
            if own is None or own.home.anchor != home.anchor:
                self._anchors.drop(home.anchor)
            raise
        self._own[engine_id] = _Held(home, revision)
        if own is not None and own.home.anchor != home.anchor:
            self._anchors.drop(own.home.anchor)
            self._gone.discard(own.home.anchor)

    def _lose(self, engine_id: str) -> None:
        """Does nothing if it is lost already: the watch tells of it as the store's answers do."""
        held = self._own.pop(engine_id, None)
        if held is None:
            return
        self._broken.pop(engine_id, None)
        self._gone.discard(held.home.anchor)
        self._anchors.drop(held.home.anchor)
        for listener in self._listeners:
            listener.home_lost(engine_id)

    def _lock_of(self, engine_id: str) -> asyncio.Lock:
        lock = self._locks.get(engine_id)
        if lock is None:
            lock = self._locks[engine_id] = asyncio.Lock()
        return lock

    # -- Following ---------------------------------------------------------------------------

    async def _follow(self) -> None:
        unseen: set[str] = set()
        async for event in TableFeed(table=self._table, clock=self._clock)():
            match event:
                case Upserted(key=engine_id, value=home):
                    unseen.discard(engine_id)
                    self._seen[engine_id] = home
                    await self._look(engine_id)
                case Removed(key=engine_id):
                    self._seen.pop(engine_id, None)
                    await self._look(engine_id)
                case Reset():
                    unseen = set(self._seen)
                case Synced():
                    for engine_id in unseen:
                        self._seen.pop(engine_id, None)
                    unseen.clear()
                    for engine_id in tuple(self._own):
                        await self._look(engine_id)

    async def _look(self, engine_id: str) -> None:
        """Compares what this replica believes with the table's copy.

        The copy is never behind this replica's own writes, as an event on its way may be.
        """
        found = await self._table.get(engine_id)
        own = self._own.get(engine_id)
        if own is None:
            return
        if found is None:
            self._break(engine_id)
        elif found.value.replica != self._replica:
            self._lose(engine_id)

    async def _follow_anchors(self) -> None:
        async for anchor in self._anchors.lost():
            for engine_id, held in self._own.items():
                if held.home.anchor == anchor:
                    self._gone.add(anchor)
                    self._break(engine_id)

    # -- Putting back ------------------------------------------------------------------------

    def _break(self, engine_id: str) -> None:
        self._broken[engine_id] = None
        self._mending.set()

    async def _mend(self) -> None:
        while True:
            await self._mending.wait()
            self._mending.clear()
            while self._broken:
                engine_id = next(iter(self._broken))
                try:
                    await self._restore(engine_id)
                    self._broken.pop(engine_id, None)
                except Conflict:
                    # Somebody wrote in between: look again, and not at once, for it may be that
                    # what is there cannot be read.
                    await self._clock.sleep(jittered(_LOOK_AGAIN))
                except Unavailable as error:
                    _log.warning("the home of engines/%s waits: %s", engine_id, logged(error))
                    await self._clock.sleep(jittered(error.retry_after))

    async def _restore(self, engine_id: str) -> None:
        async with self._lock_of(engine_id):
            own = self._own.get(engine_id)
            if own is None:
                return
            found = await self._table.get(engine_id, current=True)
            if self._own.get(engine_id) is not own:
                return  # Another replica has it since.
            if found is not None and found.value.replica != self._replica:
                self._lose(engine_id)
                return
            if found is not None and found.value == own.home and own.home.anchor not in self._gone:
                self._own[engine_id] = _Held(own.home, found.revision)
                return
            home = await self._on_new_anchor(own.home)
            await self._write(engine_id, home, expected=found.revision if found else 0)
            _log.debug("the store had lost what it held of engines/%s: put it back", engine_id)
            for listener in self._listeners:
                listener.home_restored(engine_id)
            await self._look(engine_id)
