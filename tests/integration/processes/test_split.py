"""Leases, registry and router as processes of their own, and one that has all of them."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.client.channel import Tls
from kvplane.client.plane import Plane
from kvplane_services.adapters.grpc_router import RemoteRouter
from kvplane_services.errors import NotFound, StrategyImpossible, Unavailable
from kvplane_services.router.model import (
    Decision,
    DecisionReason,
    LegKind,
    LegReport,
    RouteOutcome,
    Strategy,
    Subject,
)
from kvplane_services.session.model import SessionKey
from tests.integration.processes.kvplane_process import Process, running
from tests.integration.processes.wire_engine import MODEL, WireEngine
from tests.support.plane_process import free_port

T = TypeVar("T")

KEY = SessionKey("t", MODEL, "", "s")
SUBJECT = Subject(session_key=KEY)


class Split:
    """Addresses of the processes, and a gateway's view of the router."""

    def __init__(self, leases: str, registry: str, router: str, plane: Plane) -> None:
        self.leases = leases
        self.registry = registry
        self.router_address = router
        self.plane = plane
        self.router = RemoteRouter(plane=plane)


@asynccontextmanager
async def engines(address: str) -> AsyncIterator[tuple[WireEngine, WireEngine]]:
    async with (
        WireEngine(address, "p", engine_pb2.ROLE_PREFILL) as prefill,
        WireEngine(address, "d", engine_pb2.ROLE_DECODE) as decode,
    ):
        yield prefill, decode


@asynccontextmanager
async def split() -> AsyncIterator[tuple[Split, Process]]:
    async with running("leases", "--grpc", "127.0.0.1:0") as leases:
        address = await leases.address("gRPC")
        follow = ("--grpc", "127.0.0.1:0", "--leases", address)
        async with running("registry", *follow) as registry, running("router", *follow) as router:
            at = (await registry.address("gRPC"), await router.address("gRPC"))
            async with Plane(address, registry=at[0], router=at[1]) as plane:
                yield Split(address, *at, plane), leases


@asynccontextmanager
async def whole() -> AsyncIterator[tuple[Split, Process]]:
    async with running("up", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0") as up:
        address = await up.address("gRPC")
        await up.address("HTTP")
        async with Plane(address) as plane:
            yield Split(address, address, address, plane), up


async def eventually(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """Asks until the answer is as wanted; views of other processes lag a little."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(Unavailable, NotFound):
                if holds(answer := await ask()):
                    return answer
            await asyncio.sleep(0.05)


async def first_decision(plane: Split) -> Decision:
    return await eventually(
        lambda: plane.router.decide(SUBJECT),
        lambda decision: decision.strategy is Strategy.RECOMPUTE,
    )


def done(decision: Decision) -> LegReport:
    return LegReport(
        decision_id=decision.decision_id, leg=LegKind.DECODE, outcome=RouteOutcome.SUCCEEDED
    )


@pytest.mark.parametrize("layout", [split, whole])
async def test_turn_is_decided_retained_and_pulled(
    layout: Callable[[], contextlib.AbstractAsyncContextManager[tuple[Split, Process]]],
) -> None:
    """The first turn recomputes; once its retention is reported, the next one pulls it."""
    async with layout() as (plane, _), engines(plane.leases) as (_, decode):
        first = await first_decision(plane)
        assert first.decode.engine == "engines/d"
        await plane.router.report(done(first))
        async with asyncio.TaskGroup() as tasks:
            # The report and the next turn race, as they do behind a gateway.
            second = tasks.create_task(plane.router.decide(SUBJECT))
            granted = await decode.retain(KEY, decision_id=first.decision_id)
        pulled = await eventually(
            lambda: plane.router.decide(SUBJECT),
            lambda decision: decision.strategy is Strategy.PULL,
        )
        assert second.result().strategy in {Strategy.PULL, Strategy.RECOMPUTE}
        assert pulled.lease == granted
        assert pulled.held_tokens == 100
        assert await plane.router.models() == (MODEL,)
        lease = await eventually(
            lambda: plane.plane.leases.get(granted), lambda lease: bool(lease.claims)
        )
        assert lease.claims[0].holder.startswith("routers/")
        session = await eventually(
            lambda: plane.plane.sessions.get(KEY.name), lambda session: bool(session.lease)
        )
        assert session.lease == granted


async def test_processes_reach_each_other_over_tls(tmp_path: Path) -> None:
    """With certificates the router follows the lease manager as it does without."""
    tls = Path(__file__).parents[1] / "state" / "tls"
    settings = tmp_path / "kvplane.toml"
    settings.write_text(
        f'engines = []\n[grpc]\ntls_cert = "{tls}/cert.pem"\ntls_key = "{tls}/key.pem"\n'
        f'[peers]\ntls_ca = "{tls}/cert.pem"\n'
        "[router]\nrestart_grace = 0\n"
    )
    common = ("--grpc", "127.0.0.1:0", "--config", str(settings))
    async with running("leases", *common) as leases:
        address = await leases.address("gRPC")
        async with running("router", *common, "--leases", address) as router:
            at = await router.address("gRPC")
            trust = Tls(root_certificates=(tls / "cert.pem").read_bytes())
            async with Plane(address, router=at, tls=trust) as plane:
                asked = RemoteRouter(plane=plane)

                async def refusal() -> str:
                    try:
                        await asked.decide(SUBJECT)
                    except NotFound as error:
                        return error.message
                    return ""

                # NotFound, not Unavailable: the router has the lease manager's full state.
                assert "no engine" in await eventually(refusal, bool)


async def test_errors_keep_their_kind_over_the_wire() -> None:
    """What the router raises is what a gateway in another process sees."""
    async with whole() as (plane, _), engines(plane.leases):
        await first_decision(plane)
        with pytest.raises(StrategyImpossible, match="no retention"):
            await plane.router.decide(SUBJECT, forced=Strategy.PULL)
        with pytest.raises(NotFound, match="served: m"):
            await plane.router.decide(Subject(session_key=SessionKey("t", "x", "", "s")))
        with pytest.raises(Unavailable, match="excluded by the caller") as refused:
            await plane.router.decide(SUBJECT, excluded={"engines/d"})
        assert refused.value.retry_after == 1.0


async def test_drained_engine_is_read_but_serves_nothing() -> None:
    """Draining moves new turns away while the retention stays readable."""
    async with split() as (plane, _), engines(plane.leases) as (_, decode):
        first = await first_decision(plane)
        await decode.retain(KEY, decision_id=first.decision_id)
        async with WireEngine(plane.leases, "e", engine_pb2.ROLE_DECODE):
            await plane.plane.engines.drain("d")
            decision = await eventually(
                lambda: plane.router.decide(SUBJECT),
                lambda decision: decision.decode.engine == "engines/e",
            )
            assert decision.strategy is Strategy.PULL
            assert (await decode.heartbeat()).drain_requested


async def test_router_outlives_the_lease_manager() -> None:
    """With the lease manager killed the router goes on, and catches up with its successor."""
    async with split() as (plane, leases), engines(plane.leases) as (prefill, decode):
        first = await first_decision(plane)
        granted = await decode.retain(KEY, decision_id=first.decision_id)
        await eventually(
            lambda: plane.router.decide(SUBJECT),
            lambda decision: decision.lease == granted,
        )
        assert await leases.end(signal.SIGKILL) == -signal.SIGKILL
        blind = await plane.router.decide(SUBJECT)
        assert (blind.strategy, blind.lease) == (Strategy.PULL, granted)
        async with running("leases", "--grpc", plane.leases) as successor:
            await successor.address("gRPC")
            # The successor's memory is empty: its first word must not cost anybody anything.
            await asyncio.sleep(1.0)
            empty = await plane.router.decide(SUBJECT)
            assert (empty.strategy, empty.lease) == (Strategy.PULL, granted)
            await prefill.register()
            await decode.register()
            renewed = await decode.retain(KEY, decision_id=first.decision_id, full_report=True)
            await eventually(
                lambda: plane.router.decide(SUBJECT),
                lambda decision: decision.lease == renewed,
            )
            # What happens from now on is seen again.
            await decode.heartbeat(
                ended=[
                    engine_pb2.RetentionEnd(
                        retention_id=f"r-{first.decision_id}",
                        reason=lease_pb2.END_REASON_RECLAIMED,
                    )
                ]
            )
            ended = await eventually(
                lambda: plane.router.decide(SUBJECT),
                lambda decision: decision.strategy is Strategy.RECOMPUTE,
            )
            assert ended.reason is DecisionReason.LEASE_ENDED
            assert "reclaimed" in ended.details


async def test_router_says_when_the_lease_manager_is_away_and_back() -> None:
    """An absent lease manager is in the router's log once as a warning, its return as a line."""
    address = f"127.0.0.1:{free_port()}"
    async with running("router", "--grpc", "127.0.0.1:0", "--leases", address) as router:
        await router.until_said(f"a watch waits for {address}")
        async with running("leases", "--grpc", address):
            await router.until_said(f"a watch at {address} goes on")
