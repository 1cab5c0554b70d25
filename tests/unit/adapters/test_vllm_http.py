import asyncio
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
from kvplane_services.engine.model import ConnectorKind, Engine, EngineLoad, Role
from kvplane_services.errors import InvalidRequest, Unavailable
from tests.support.clock import FakeClock


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

    async def register(
        self, engine: Engine, *, ttl: float = 0.0, request_id: str = ""
    ) -> Registration:
        if self.failing:
            raise Unavailable("no store", retry_after=1.0)
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
    ["", "decode", "decode=", "decoder=http://h:1", "http://h:1", "prefill=h:1", "both=ftp://h"],
)
def test_malformed_engine_is_refused(text: str) -> None:
    """What is not ROLE=URL is refused with an example or the reason."""
    with pytest.raises(InvalidRequest, match=r"ROLE=URL|expected http"):
        NamedEngine.parse(text)


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
