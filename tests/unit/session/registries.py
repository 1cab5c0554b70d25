"""Several registries that share a store, each with its own way to it and its own feed of leases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kvplane_services.adapters.records import MEMBERS, SESSIONS
from kvplane_services.adapters.session_records import SessionCodec
from kvplane_services.lease.model import Lease
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.model import Session, SessionState
from kvplane_services.session.record import SessionRecord
from kvplane_services.session.registry import SessionRegistry
from kvplane_services.session.shares import ROLE
from kvplane_services.store.members import Member, Members, keeper_of
from kvplane_services.store.model import Event, Synced
from tests.support.clock import FakeClock
from tests.support.cut_store import SharedStore
from tests.support.state_values import key_of
from tests.unit.session.remote_leases import RemoteLeases


class Replica:
    """A registry, its way to the store, and the lease manager as it sees it."""

    def __init__(self, crowd: "Registries", name: str, *, alone: bool = False) -> None:
        self.name = name
        self._clock = crowd.clock
        self.store = crowd.shared.replica()
        self.leases = RemoteLeases()
        # One that is alone believes that it looks after all sessions.
        others = SharedStore(clock=crowd.clock).replica() if alone else self.store
        self.members = Members(
            member_id=name,
            member=Member((ROLE,)),
            table=others.table(MEMBERS),
            anchors=others.anchors,
            clock=crowd.clock,
        )
        self.registry = SessionRegistry(
            table=self.store.table(SESSIONS),
            codec=SessionCodec(),
            leases=self.leases,
            control=self.leases,
            members=self.members,
            reachable=lambda: self.store.reachable,
            clock=crowd.clock,
            config=crowd.config,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(part.run()) for part in (self.members, self.registry)]

    async def kill(self) -> None:
        """Ends the process as a power cut does: it says nothing more to anybody."""
        if not self.store.away:
            self.store.cut(hangs=1e9)
        self.leases.away = True
        await self.stop()

    async def stop(self) -> None:
        """Ends the process as asked."""
        for task in self._tasks:
            task.cancel()
        await self._clock.sleep(0)

    def check(self) -> None:
        """Raises what a loop of the process failed with."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def session(self, session_id: str = "s") -> Session:
        return self.registry.get(key_of(session_id))

    def state(self, session_id: str = "s") -> SessionState:
        return self.session(session_id).state


class Registries:
    """Running registries."""

    def __init__(self, config: SessionConfig | None = None) -> None:
        self.clock = FakeClock()
        self.config = config or SessionConfig()
        self.shared = SharedStore(clock=self.clock)
        self.replicas: list[Replica] = []

    @asynccontextmanager
    async def running(self, *names: str, alone: bool = False) -> AsyncIterator[list[Replica]]:
        for name in names:
            await self.add(name, alone=alone)
        try:
            yield list(self.replicas)
            for replica in self.replicas:
                replica.check()
        finally:
            for replica in self.replicas:
                await replica.stop()
            await self.settle()

    async def add(self, name: str, *, alone: bool = False) -> Replica:
        """Starts one more; its feed of leases is at the beginning."""
        replica = Replica(self, name, alone=alone)
        self.replicas.append(replica)
        replica.start()
        await self.settle()
        return replica

    async def hear(self, *events: Event[Lease]) -> None:
        """Every replica's feed of leases tells of these."""
        for replica in self.replicas:
            replica.leases.send(*events)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await self.clock.advance(0)

    async def advance(self, seconds: float, step: float = 0.5) -> None:
        for _ in range(round(seconds / step)):
            await self.clock.advance(step)
            self.shared.lapse()
        await self.settle()

    def keeper(self, session_id: str = "s") -> Replica:
        """The replica that looks after a session while all are alive."""
        found = keeper_of(key_of(session_id).name, [replica.name for replica in self.replicas])
        return next(replica for replica in self.replicas if replica.name == found)

    def other(self, session_id: str = "s") -> Replica:
        """One that does not."""
        keeper = self.keeper(session_id)
        return next(replica for replica in self.replicas if replica is not keeper)

    def saved(self, session_id: str = "s") -> SessionRecord | None:
        """What the store has of a session."""
        table = self.shared.memory.table(SESSIONS)
        found = table._copy.find(key_of(session_id).name)
        return None if found is None else SessionCodec().unpack(found.value)

    def count(self, session_id: str = "s") -> int:
        """Turns of a session, by the store."""
        record = self.saved(session_id)
        return 0 if record is None else record.turn_count

    @property
    def claimed(self) -> list[tuple[str, str, float]]:
        """Claims that any replica made: its name, the lease, and for how long."""
        return [
            (replica.name, renewal.lease, renewal.ttl)
            for replica in self.replicas
            for _, renewal in replica.leases.claimed
            if not renewal.drop
        ]

    @property
    def released(self) -> list[tuple[str, str]]:
        """Releases that any replica asked for: its name, and the lease."""
        return [
            (replica.name, lease)
            for replica in self.replicas
            for lease, _ in replica.leases.released
        ]


SYNCED: Event[Any] = Synced(1)
