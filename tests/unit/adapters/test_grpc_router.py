import asyncio
from typing import Any

import pytest

from kvplane.client.errors import KvplaneClientError, error_of
from kvplane_services.adapters.grpc_router import RemoteRouter
from kvplane_services.errors import Unavailable
from kvplane_services.router.model import LegKind, LegReport, RouteOutcome
from kvplane_services.router.wire import decision_to_wire
from tests.support.clock import FakeClock
from tests.unit.router.fleet import Fleet, decode, prefill, subject

AWAY = error_of("UNAVAILABLE", "connection refused")
REFUSED = error_of("UNAVAILABLE", "no engine", reason="UNAVAILABLE", retry_after=2.0)


class ScriptedRouter:
    """A client's router that fails as told before it answers."""

    def __init__(self, *failures: KvplaneClientError) -> None:
        self._failures = list(failures)
        self.request_ids: list[str] = []
        self.reports = 0

    async def decide(self, subject: Any, *, request_id: str, **_: Any) -> Any:
        self.request_ids.append(request_id)
        self._fail()
        fleet = Fleet(prefill(), decode())
        return decision_to_wire(await fleet.router.decide(_SUBJECT))

    async def report(self, outcome: Any) -> None:
        self.reports += 1
        self._fail()

    def _fail(self) -> None:
        if self._failures:
            raise self._failures.pop(0)


_SUBJECT = subject()
_REPORT = LegReport("id", LegKind.DECODE, RouteOutcome.SUCCEEDED)


def remote(scripted: ScriptedRouter) -> tuple[RemoteRouter, FakeClock]:
    class Plane:
        router = scripted

    plane: Any = Plane()
    clock = FakeClock()
    return RemoteRouter(plane=plane, clock=clock), clock


async def test_router_that_is_away_is_asked_again_under_the_same_id() -> None:
    """A restarting router costs a repeated call, never a second decision."""
    scripted = ScriptedRouter(AWAY)
    router, clock = remote(scripted)
    async with asyncio.TaskGroup() as tasks:
        decision = tasks.create_task(router.decide(_SUBJECT))
        await clock.wait_for_sleepers()
        await clock.advance(1)
    assert decision.result().decode.engine == "engines/d"
    first, second = scripted.request_ids
    assert first == second != ""


async def test_router_that_stays_away_is_unavailable() -> None:
    """After three attempts the caller is told, with a time to retry."""
    scripted = ScriptedRouter(AWAY, AWAY, AWAY, AWAY)
    router, clock = remote(scripted)
    async with asyncio.TaskGroup() as tasks:
        report = tasks.create_task(_outcome(router))
        await clock.wait_for_sleepers()
        await clock.advance(1)
    assert isinstance(report.result(), Unavailable)
    assert scripted.reports == 3


async def test_answer_of_the_router_is_final() -> None:
    """What the router itself refuses is not asked again."""
    scripted = ScriptedRouter(REFUSED)
    router, _ = remote(scripted)
    with pytest.raises(Unavailable, match="no engine") as refused:
        await router.decide(_SUBJECT)
    assert refused.value.retry_after == 2.0
    assert len(scripted.request_ids) == 1


async def _outcome(router: RemoteRouter) -> Unavailable | None:
    try:
        await router.report(_REPORT)
    except Unavailable as error:
        return error
    return None
