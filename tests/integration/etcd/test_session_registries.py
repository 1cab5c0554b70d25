"""Registries in processes of their own that share their sessions over a real etcd."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TypeVar

import pytest

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.api.session.v1 import session_pb2
from kvplane.client import AlreadyExistsError, NotFoundError, UnavailableError
from kvplane.client.names import SessionKey as Key
from kvplane.client.plane import Plane
from kvplane_services.session.model import SessionKey
from tests.integration.processes.kvplane_process import Process, running
from tests.integration.processes.wire_engine import MODEL, WireEngine
from tests.support.etcd import EtcdNode

T = TypeVar("T")

FREE = "127.0.0.1:0"
WIRED = SessionKey("t", MODEL, "", "s")
KEY = Key("t", MODEL, "", "s")
ENDED_KEY = Key("t", MODEL, "", "ended")
RETAINED = session_pb2.Session.STATE_RETAINED
ENDED = session_pb2.Session.STATE_ENDED


class Registries:
    """A lease manager, and registries that follow it, all on one etcd."""

    def __init__(self, node: EtcdNode, stack: AsyncExitStack) -> None:
        self._store = ("--store", f"etcd://{node.endpoint}")
        self._stack = stack
        self.leases = ""

    async def start_leases(self) -> None:
        process = await self._stack.enter_async_context(
            running("leases", "--grpc", FREE, *self._store)
        )
        self.leases = await process.address("gRPC")

    async def start(self) -> tuple[Process, Plane]:
        """One more registry, and a client of it."""
        process = await self._stack.enter_async_context(
            running("registry", "--grpc", FREE, "--leases", self.leases, *self._store)
        )
        address = await process.address("gRPC")
        plane = await self._stack.enter_async_context(Plane(self.leases, registry=address))
        return process, plane

    async def engine(self) -> WireEngine:
        return await self._stack.enter_async_context(
            WireEngine(self.leases, "d", engine_pb2.ROLE_DECODE)
        )


@asynccontextmanager
async def registries(node: EtcdNode) -> AsyncIterator[Registries]:
    async with AsyncExitStack() as stack:
        plane = Registries(node, stack)
        await plane.start_leases()
        yield plane


async def eventually(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """Asks until the answer is as wanted: what is written elsewhere comes a moment later."""
    async with asyncio.timeout(40):
        while True:
            with suppress(NotFoundError, UnavailableError):
                if holds(answer := await ask()):
                    return answer
            await asyncio.sleep(0.05)


async def test_registries_share_their_sessions(node: EtcdNode) -> None:
    """What one is told, or a lease says, all know; and again when all were started anew."""
    async with registries(node) as plane:
        (one, a), (two, b) = await plane.start(), await plane.start()
        engine = await plane.engine()
        await a.sessions.create(KEY, keep_for=600.0)
        with pytest.raises(AlreadyExistsError):
            await b.sessions.create(KEY)
        leases = [await engine.retain(WIRED, decision_id=f"turn-{number}") for number in range(3)]
        lease = leases[-1]
        seen = [
            await eventually(
                lambda each=each: each.sessions.get(KEY),  # type: ignore[misc]
                lambda session: session.turn_count == 3 and session.lease == lease,
            )
            for each in (a, b)
        ]
        assert [[turn.decision_id for turn in each.turns] for each in seen] == [
            ["turn-0", "turn-1", "turn-2"]
        ] * 2

        assert await one.end(signal.SIGKILL) == -signal.SIGKILL
        assert await two.end() == 0
        _, c = await plane.start()

        found = await c.sessions.get(KEY)
        assert (found.state, found.turn_count, found.lease) == (RETAINED, 3, lease)
        assert found.hints.keep_for.seconds == 600
        claims = await eventually(lambda: c.leases.get(lease), lambda lease: len(lease.claims) == 1)
        assert claims.claims[0].holder == found.name


async def test_an_ended_session_stays_ended(node: EtcdNode) -> None:
    """Also if its engine registers anew, with other registries than the one that ended it."""
    async with registries(node) as plane:
        (one, a), (_, b) = await plane.start(), await plane.start()
        engine = await plane.engine()
        await engine.retain(WIRED, decision_id="turn")
        await eventually(lambda: a.sessions.get(KEY), lambda session: session.turn_count == 1)
        await a.sessions.end(KEY)
        await one.end(signal.SIGKILL)

        await engine.register()
        again = await engine.retain(WIRED, decision_id="turn", full_report=True)

        async def lease_seen_by_a_live_engine() -> lease_pb2.Lease:
            await engine.heartbeat()
            return await b.leases.get(again)

        # The other registry looks after the session once the killed one counts as gone.
        released = await eventually(
            lease_seen_by_a_live_engine,
            lambda lease: lease.state != lease_pb2.Lease.STATE_ACTIVE,
        )
        # The lease manager tells of it first; the registry follows.
        session = await eventually(lambda: b.sessions.get(KEY), lambda session: not session.lease)
        assert released.session == session.name
        assert (session.state, session.turn_count) == (ENDED, 1)
        await engine.retain(WIRED, decision_id="another turn")
        await eventually(
            lambda: b.sessions.get(KEY),
            lambda session: (session.state, session.turn_count) == (RETAINED, 2),
        )


async def test_while_etcd_is_away(node: EtcdNode) -> None:
    """Sessions can be read, and calls that must write are refused soon; all is well again after."""
    async with registries(node) as plane:
        (_, a), (_, b) = await plane.start(), await plane.start()
        engine = await plane.engine()
        await engine.retain(WIRED, decision_id="turn")
        for each in (a, b):
            await eventually(
                lambda each=each: each.sessions.get(KEY),  # type: ignore[misc]
                lambda session: session.turn_count == 1,
            )
        node.pause()
        try:
            with pytest.raises(UnavailableError):
                async with asyncio.timeout(15):
                    await a.sessions.create(Key("t", MODEL, "", "another"))
            assert (await b.sessions.get(KEY)).state == RETAINED
        finally:
            node.resume()

        touched = await eventually(
            lambda: a.sessions.touch(KEY, keep_for=60.0), lambda touched: True
        )
        assert touched.session.hints.keep_for.seconds == 60
        await eventually(
            lambda: b.sessions.get(KEY), lambda session: session.hints.keep_for.seconds == 60
        )


async def test_etcd_loses_its_data(node: EtcdNode) -> None:
    """Registries put histories and hints back."""
    async with registries(node) as plane:
        (one, a), (_, b) = await plane.start(), await plane.start()
        engine = await plane.engine()
        for number in range(2):
            await engine.retain(WIRED, decision_id=f"turn-{number}")
        await eventually(lambda: a.sessions.get(KEY), lambda session: session.turn_count == 2)
        await a.sessions.touch(KEY, keep_for=3000.0)
        await a.sessions.create(ENDED_KEY)
        await a.sessions.end(ENDED_KEY)
        await eventually(lambda: b.sessions.get(ENDED_KEY), lambda session: session.state == ENDED)
        await eventually(
            lambda: b.sessions.get(KEY),
            lambda session: (session.turn_count, session.hints.keep_for.seconds) == (2, 3000),
        )

        await asyncio.to_thread(node.kill)
        node.wipe()
        await asyncio.to_thread(node.start)

        await eventually(lambda: a.sessions.touch(KEY, keep_for=3000.0), lambda touched: True)
        await one.end(signal.SIGKILL)
        session = await b.sessions.get(KEY)
        assert (session.turn_count, session.hints.keep_for.seconds) == (2, 3000)
        _, c = await plane.start()
        found = await eventually(
            lambda: c.sessions.get(KEY), lambda session: session.turn_count == 2
        )
        assert [turn.decision_id for turn in found.turns] == ["turn-0", "turn-1"]
        await eventually(
            lambda: c.sessions.get(ENDED_KEY),
            lambda session: session.state == ENDED,
        )
