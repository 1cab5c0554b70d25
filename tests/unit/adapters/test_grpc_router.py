import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError, Metadata

from kvplane.api.router.v1 import router_pb2
from kvplane.client.replicas import Replicas
from kvplane.client.router import Router
from kvplane_services.adapters.grpc_router import RemoteRouter
from kvplane_services.errors import Unavailable
from kvplane_services.router.model import LegKind, LegReport, RouteOutcome
from kvplane_services.router.wire import decision_to_wire
from tests.support.clock import FakeClock
from tests.unit.router.fleet import Fleet, decode, prefill, subject

AWAY = AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "refused", "")


def refused() -> AioRpcError:
    """What a router says that has no engine."""
    status = status_pb2.Status(code=14)
    info = error_details_pb2.ErrorInfo(reason="UNAVAILABLE", domain="kvplane")
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromSeconds(2)
    for detail in (info, retry):
        status.details.add().Pack(detail)
    details = ("grpc-status-details-bin", status.SerializeToString())
    return AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(details), "no engine", "")


class FakeRouter:
    """One router, and the channel to it; fails as told before it answers."""

    def __init__(self, number: int, *failures: AioRpcError) -> None:
        self.number = number
        self.failures = list(failures)
        self.state = grpc.ChannelConnectivity.READY
        self.request_ids: list[str] = []
        self.reports: list[str] = []
        self.report_failures: list[AioRpcError] = []

    def get_state(self, *, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.state

    async def close(self, grace: float | None) -> None:
        pass

    def unary_unary(self, path: str, **_: Any) -> Callable[..., Any]:
        return getattr(self, path.rpartition("/")[2])  # type: ignore[no-any-return]

    unary_stream = stream_stream = stream_unary = unary_unary

    async def DecideRoute(self, request: Any, **_: Any) -> Any:
        self.request_ids.append(request.request_id)
        if self.failures:
            raise self.failures.pop(0)
        decision = decision_to_wire(await Fleet(prefill(), decode()).router.decide(_SUBJECT))
        decision.decision_id = f"{self.number}-{len(self.request_ids)}"
        return router_pb2.DecideRouteResponse(decision=decision)

    async def ReportRouteOutcome(self, request: Any, **_: Any) -> Any:
        if self.report_failures:
            raise self.report_failures.pop(0)
        self.reports.append(request.decision_id)
        return router_pb2.ReportRouteOutcomeResponse()

    async def ListRoutedModels(self, request: Any, **_: Any) -> Any:
        raise AssertionError("the adapter asked for more than decisions and reports")

    ExplainRoute = ListRoutedModels


_SUBJECT = subject()


def done(decision_id: str, leg: LegKind = LegKind.DECODE) -> LegReport:
    return LegReport(decision_id, leg, RouteOutcome.SUCCEEDED)


def remote(*routers: FakeRouter) -> tuple[RemoteRouter, FakeClock]:
    """A gateway's side of these routers, which are tried in their order."""
    clock = FakeClock()

    def dial(target: str, *, tls: Any = None) -> Any:
        return routers[int(target.rpartition(":")[2]) - 1]

    replicas = Replicas(
        ",".join(f"h:{number}" for number in range(1, len(routers) + 1)),
        dial=dial,
        shuffle=lambda _: None,
    )

    class Plane:
        router = Router(replicas, timeout=5.0, clock=clock)

    plane: Any = Plane()
    return RemoteRouter(plane=plane), clock


async def test_router_that_is_away_is_asked_again_under_the_same_id() -> None:
    """A restarting router costs a repeated call, never a second decision."""
    only = FakeRouter(1, AWAY)
    router, clock = remote(only)
    async with asyncio.TaskGroup() as tasks:
        decision = tasks.create_task(router.decide(_SUBJECT))
        await clock.wait_for_sleepers()
        await clock.advance(1)
    assert decision.result().decode.engine == "engines/d"
    first, second = only.request_ids
    assert first == second != ""


async def test_router_that_stays_away_is_unavailable() -> None:
    """After three attempts the caller is told, with a time to retry."""
    router, clock = remote(FakeRouter(1, AWAY, AWAY, AWAY, AWAY))
    async with asyncio.TaskGroup() as tasks:
        decision = tasks.create_task(_refusal(router))
        await clock.wait_for_sleepers()
        await clock.advance(1)
    assert decision.result().retry_after == 1.0


async def test_answer_of_the_router_is_final() -> None:
    """What the only router itself refuses is not asked again."""
    only = FakeRouter(1, refused())
    router, _ = remote(only)
    assert (await _refusal(router)).retry_after == 2.0
    assert len(only.request_ids) == 1


async def test_another_router_decides() -> None:
    """Where one router is away, or cannot serve the turn yet, another one decides."""
    for trouble in (AWAY, refused()):
        first, second = FakeRouter(1, trouble), FakeRouter(2)
        router, _ = remote(first, second)
        assert (await router.decide(_SUBJECT)).decision_id == "2-1"
        assert first.request_ids == second.request_ids


async def test_reports_go_to_the_router_that_decided() -> None:
    """Only the router that decided counts the turn, also after the gateway left it."""
    first, second = FakeRouter(1), FakeRouter(2)
    router, _ = remote(first, second)
    one = await router.decide(_SUBJECT)
    first.failures = [AWAY]
    other = await router.decide(_SUBJECT)
    for decision in (one, other):
        for leg in LegKind:
            await router.report(done(decision.decision_id, leg))
    assert (first.reports, second.reports) == (["1-1", "1-1"], ["2-1", "2-1"])


async def test_report_to_a_router_that_is_gone_does_not_wait() -> None:
    """A router that is away keeps no other report waiting, and no other router gets its."""
    first, second = FakeRouter(1), FakeRouter(2)
    router, _ = remote(first, second)
    one = await router.decide(_SUBJECT)
    first.failures, first.state = [AWAY], grpc.ChannelConnectivity.TRANSIENT_FAILURE
    await router.decide(_SUBJECT)
    with pytest.raises(Unavailable, match="h:1 is away"):
        await router.report(done(one.decision_id))
    assert (first.reports, second.reports) == ([], [])


async def test_report_of_a_decision_of_long_ago_is_sent() -> None:
    """A report whose router is not known any more goes to the one in use."""
    only = FakeRouter(1)
    router, _ = remote(only)
    await router.report(done("forgotten"))
    assert only.reports == ["forgotten"]


async def _refusal(router: RemoteRouter) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        await router.decide(_SUBJECT)
    return caught.value
