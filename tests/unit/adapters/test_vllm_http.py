import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import aiohttp
import pytest
from yarl import URL

from kvplane_services.adapters.vllm_http import NamedEngine, ProbePlan, Prober
from kvplane_services.engine.answers import (
    HeartbeatAnswer,
    HeartbeatOutcome,
    Registration,
)
from kvplane_services.engine.model import (
    ConnectorKind,
    Engine,
    EngineLoad,
    EngineState,
    FixedRetention,
    Role,
)
from kvplane_services.errors import AlreadyExists, InvalidRequest, Unavailable
from tests.support.clock import FakeClock
from tests.support.state_plane import Replicas

ENGINE_ID = NamedEngine.parse("decode=http://127.0.0.1:8200").engine_id


@dataclass
class Answer:
    """One HTTP answer, as an asynchronous context manager."""

    url: URL
    status: int
    body: bytes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def read(self) -> bytes:
        return self.body


@dataclass
class FakeHttp:
    """Answers GET as the engine that it pretends to be would."""

    status: int = HTTPStatus.OK
    models: bytes = b'{"data": [{"id": "m"}]}'
    away: bool = False
    asked: list[str] = field(default_factory=list)

    def get(self, url: str, *, timeout: aiohttp.ClientTimeout) -> Answer:
        assert timeout.total == 1.0
        self.asked.append(url)
        if self.away:
            raise aiohttp.ClientConnectionError("refused")
        body = self.models if url.endswith("/v1/models") else b""
        return Answer(URL(url), self.status, body)


@dataclass
class FakeDirectory:
    """Grants what is asked."""

    registered: list[tuple[Engine, float]] = field(default_factory=list)
    heartbeats: int = 0
    outcome: HeartbeatOutcome = HeartbeatOutcome.RENEWED
    failing: bool = False
    elsewhere: bool = False
    quicker: bool = False

    def attended(self, engine_id: str) -> bool:
        return self.elsewhere

    async def register(
        self, engine: Engine, *, ttl: float = 0.0, request_id: str = "", first_come: bool = False
    ) -> Registration:
        assert first_come
        if self.failing:
            raise Unavailable("no store", retry_after=1.0)
        if self.quicker:
            raise AlreadyExists("another replica's")
        self.registered.append((engine, ttl))
        return Registration(engine, ttl, 1.0)

    async def heartbeat(
        self, engine_id: str, epoch: int, load: EngineLoad | None = None
    ) -> HeartbeatAnswer:
        self.heartbeats += 1
        return HeartbeatAnswer(self.outcome, heartbeat_interval=1.0)


@asynccontextmanager
async def probing(
    http: FakeHttp, directory: FakeDirectory, clock: FakeClock
) -> AsyncIterator[None]:
    session: Any = http
    prober = Prober(
        engines=[NamedEngine.parse("decode=http://127.0.0.1:8200/")],
        directory=directory,
        session=session,
        clock=clock,
        plan=ProbePlan(interval=2, timeout=1, failures=3),
    )
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(prober.run())
        await clock.wait_for_sleepers()
        yield
        loop.cancel()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "decode",
        "decode=",
        "decoder=http://h:1",
        "http://h:1",
        "prefill=h:1",
        "both=ftp://h",
        "decode=http://h:1,keeps",
        "decode=http://h:1,keeps=0",
        "decode=http://h:1,keeps=inf",
        "decode=http://h:1,keeps=nan",
        "decode=http://h:1,trust-history",
        "decode=http://h:1,keeps=480,trust",
        "prefill=http://h:1,keeps=480",
    ],
)
def test_malformed_engine_is_refused(text: str) -> None:
    """What is not ROLE=URL is refused with an example or the reason."""
    with pytest.raises(InvalidRequest, match=r"ROLE=URL|expected http|keeps=SECONDS"):
        NamedEngine.parse(text)


def test_what_an_engine_keeps_is_the_operators_word() -> None:
    """Options behind the URL say how long a decode engine keeps turns, and whether to trust."""
    url = "decode=http://127.0.0.1:8200"
    plain, keeps, trusted = (
        NamedEngine.parse(url + options)
        for options in ("", ",keeps=480", ",keeps=30.5,trust-history")
    )
    assert plain.fixed_retention is None
    assert keeps.fixed_retention == FixedRetention(480.0)
    assert trusted.fixed_retention == FixedRetention(30.5, trust_history=True)
    assert len({one.engine_id for one in (plain, keeps, trusted)}) == 1
    assert len({one.losses for one in (plain, keeps, trusted)}) == 3


def test_named_engine_has_a_stable_id() -> None:
    """The id follows from role and address, so that a restarted plane takes up the same engine."""
    one = NamedEngine.parse("prefill=http://127.0.0.1:8100")
    assert one == NamedEngine.parse("prefill=http://127.0.0.1:8100/")
    assert one.engine_id.startswith("prefill-")
    assert one.engine_id != NamedEngine.parse("prefill=http://127.0.0.1:8101").engine_id


async def test_answering_engine_is_registered_and_kept() -> None:
    """An engine that answers is registered once as stock, then kept alive by each probe."""
    http, directory, clock = FakeHttp(), FakeDirectory(), FakeClock()
    async with probing(http, directory, clock):
        await clock.advance(4)
    [(engine, ttl)] = directory.registered
    assert (engine.role, engine.endpoint) == (Role.DECODE, "http://127.0.0.1:8200")
    assert engine.build.connector is ConnectorKind.STOCK
    assert engine.models == ("m",)
    assert ttl == 9
    assert directory.heartbeats == 2
    assert http.asked[:2] == ["http://127.0.0.1:8200/health", "http://127.0.0.1:8200/v1/models"]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda http: setattr(http, "away", True),
        lambda http: setattr(http, "status", 503),
        lambda http: setattr(http, "models", b"{}"),
        lambda http: setattr(http, "models", b"not json"),
        lambda http: setattr(http, "models", b'{"data": []}'),
    ],
)
async def test_failing_engine_is_no_longer_kept(break_it: Callable[[FakeHttp], None]) -> None:
    """While an engine fails it gets no heartbeat, and does again once it answers."""
    http, directory, clock = FakeHttp(), FakeDirectory(), FakeClock()
    async with probing(http, directory, clock):
        break_it(http)
        await clock.advance(10)
        assert directory.heartbeats == 0
        http.__init__()  # type: ignore[misc]
        await clock.advance(2)
        assert directory.heartbeats == 1
    assert len(directory.registered) == 1


@pytest.mark.parametrize("outcome", [HeartbeatOutcome.NOT_FOUND, HeartbeatOutcome.FENCED])
async def test_forgotten_engine_registers_again(outcome: HeartbeatOutcome) -> None:
    """A registration that ran out is made anew."""
    http, directory, clock = FakeHttp(), FakeDirectory(outcome=outcome), FakeClock()
    async with probing(http, directory, clock):
        await clock.advance(2)
    assert len(directory.registered) == 2


async def test_other_models_register_again() -> None:
    """An engine that serves other models than before is registered with them."""
    http, directory, clock = FakeHttp(), FakeDirectory(), FakeClock()
    async with probing(http, directory, clock):
        http.models = b'{"data": [{"id": "m"}, {"id": "lora"}]}'
        await clock.advance(2)
    assert [engine.models for engine, _ in directory.registered] == [("m",), ("m", "lora")]


async def test_directory_that_is_away_is_asked_again() -> None:
    """A refusal of the directory does not end the probing."""
    http, directory, clock = FakeHttp(), FakeDirectory(failing=True), FakeClock()
    async with probing(http, directory, clock):
        await clock.advance(2)
        directory.failing = False
        await clock.advance(2)
    assert len(directory.registered) == 1


async def test_engine_of_another_replica_is_left_to_it() -> None:
    """No registration and no heartbeat, so that it stays where it is."""
    http, directory, clock = FakeHttp(), FakeDirectory(elsewhere=True), FakeClock()
    async with probing(http, directory, clock):
        await clock.advance(10)
    assert directory.registered == []
    assert directory.heartbeats == 0


async def test_engine_whose_registration_ran_out_elsewhere_is_taken_over() -> None:
    """Whoever stands by registers it then."""
    http, directory, clock = FakeHttp(), FakeDirectory(elsewhere=True), FakeClock()
    async with probing(http, directory, clock):
        await clock.advance(4)
        directory.elsewhere = False
        await clock.advance(2)
    assert len(directory.registered) == 1


async def test_engine_that_another_replica_took_is_let_go() -> None:
    """A replica that was away for long does not take it back, nor register it again."""
    http, directory, clock = FakeHttp(), FakeDirectory(), FakeClock()
    async with probing(http, directory, clock):
        directory.elsewhere = True
        await clock.advance(10)
    assert len(directory.registered) == 1
    assert directory.heartbeats == 0


async def test_quicker_replica_keeps_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    """Losing the race is nothing that an operator must hear of."""
    http, directory, clock = FakeHttp(), FakeDirectory(quicker=True), FakeClock()
    async with probing(http, directory, clock):
        await clock.advance(4)
    assert directory.registered == []
    assert caplog.records == []


async def test_replicas_that_name_the_same_engine() -> None:
    """One registers it, and the others leave it; when that one is gone another takes over."""
    replicas = Replicas(3)
    clock = replicas.clock
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(replicas.running())
        loops = []
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for plane in replicas.planes:
            session: Any = FakeHttp()
            prober = Prober(
                engines=[NamedEngine.parse("decode=http://127.0.0.1:8200")],
                directory=plane.directory,
                session=session,
                clock=clock,
                plan=ProbePlan(interval=2, timeout=1, failures=3),
            )
            loops.append(tasks.create_task(prober.run()))
        await replicas.advance(60)
        homes = [plane.homes.is_home(ENGINE_ID) for plane in replicas.planes]
        epochs = {plane.directory.get(ENGINE_ID).epoch for plane in replicas.planes}
        assert homes.count(True) == 1
        assert len(epochs) == 1

        gone = homes.index(True)
        loops[gone].cancel()
        replicas.stores[gone].cut()
        await replicas.advance(30)

        rest = [plane for number, plane in enumerate(replicas.planes) if number != gone]
        assert [plane.homes.is_home(ENGINE_ID) for plane in rest].count(True) == 1
        assert {plane.directory.get(ENGINE_ID).state for plane in rest} == {EngineState.ACTIVE}
        assert epochs != {plane.directory.get(ENGINE_ID).epoch for plane in rest}
        for loop in loops:
            loop.cancel()
