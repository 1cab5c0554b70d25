"""Decisions that wait for the retention of the turn before."""

import asyncio

import pytest

from kvplane_services.engine.model import ConnectorKind
from kvplane_services.router.model import (
    RouteOutcome,
    Strategy,
)
from tests.unit.router.fleet import (
    Fleet,
    decode,
    done,
    lease,
    prefill,
    subject,
)


class TestWaitForRetention:
    async def test_overtaking_turn_waits_and_pulls(self) -> None:
        """A turn that comes before the report of the last one's retention waits for it."""
        fleet = Fleet(prefill(), decode())
        first = await fleet.router.decide(subject())
        await fleet.router.report(done(first))
        async with asyncio.TaskGroup() as tasks:
            second = tasks.create_task(fleet.router.decide(subject()))
            await fleet.clock.wait_for_sleepers()
            await fleet.clock.advance(0.01)
            fleet.grant(lease(decision_id=first.decision_id))
        assert second.result().strategy is Strategy.PULL
        assert second.result().waited == pytest.approx(0.01)

    async def test_wait_is_bounded_and_paid_once(self) -> None:
        """A retention that never comes costs retention_wait, once."""
        fleet = Fleet(prefill(), decode())
        await fleet.router.report(done(await fleet.router.decide(subject())))
        async with asyncio.TaskGroup() as tasks:
            second = tasks.create_task(fleet.router.decide(subject()))
            await fleet.clock.wait_for_sleepers()
            await fleet.clock.advance(0.025)
        assert second.result().strategy is Strategy.RECOMPUTE
        assert second.result().waited == pytest.approx(0.025)
        assert (await fleet.router.decide(subject())).waited == 0.0

    @pytest.mark.parametrize(
        ("kind", "outcome"),
        [
            (ConnectorKind.STOCK, RouteOutcome.SUCCEEDED),
            (ConnectorKind.KVPLANE, RouteOutcome.FAILED),
            (ConnectorKind.KVPLANE, RouteOutcome.CANCELLED),
        ],
    )
    async def test_nothing_expected(self, kind: ConnectorKind, outcome: RouteOutcome) -> None:
        """After a failed turn, or on a stock engine, nothing is waited for."""
        fleet = Fleet(prefill(connector=kind), decode(connector=kind))
        await fleet.router.report(done(await fleet.router.decide(subject()), outcome))
        assert (await fleet.router.decide(subject())).waited == 0.0

    async def test_report_before_the_turn_is_not_waited_for(self) -> None:
        """A retention that was reported already is used at once."""
        fleet = Fleet(prefill(), decode())
        first = await fleet.router.decide(subject())
        fleet.grant(lease(decision_id=first.decision_id))
        await fleet.router.report(done(first))
        second = await fleet.router.decide(subject())
        assert (second.strategy, second.waited) == (Strategy.PULL, 0.0)

    async def test_old_turn_is_not_waited_for(self) -> None:
        """A second after its end a turn's retention is not expected any more."""
        fleet = Fleet(prefill(), decode())
        await fleet.router.report(done(await fleet.router.decide(subject())))
        await fleet.clock.advance(1.0)
        assert (await fleet.router.decide(subject())).waited == 0.0
