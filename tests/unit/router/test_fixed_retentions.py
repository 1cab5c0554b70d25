"""Turns on engines with the stock connector that keep what they report to nobody."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kvplane_services.engine.model import ConnectorKind, FixedRetention
from kvplane_services.errors import StrategyImpossible
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.router.model import (
    Decision,
    DecisionReason,
    KeptTurn,
    LegReport,
    RouteOutcome,
    Strategy,
    Subject,
)
from tests.unit.router.fleet import Fleet, decode, done, key, lease, prefill, subject

STOCK = ConnectorKind.STOCK
TRUSTED = FixedRetention(480.0, trust_history=True)
SO_FAR = b"messages so far"
# As vLLM's NixlConnector answers.
HANDLE: dict[str, Any] = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[4, 5, 6]],
    "remote_engine_id": "e1",
    "remote_request_id": "chatcmpl-1-0-8f",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_num_tokens": 300,
}


def stock_fleet(fixed: FixedRetention | None = TRUSTED) -> Fleet:
    return Fleet(prefill(connector=STOCK), decode(connector=STOCK, fixed=fixed))


def next_turn(history_digest: bytes = SO_FAR) -> Subject:
    return replace(subject(), history_digest=history_digest)


def kept_lease(**changes: Any) -> Lease:
    """The lease on a turn that a stock engine keeps."""
    values: dict[str, Any] = {
        "ttl": 480.0,
        "history_digest": SO_FAR,
        "handle": json.dumps(HANDLE).encode(),
    }
    return lease(**(values | changes))


def reported(decision: Decision, handle: object = HANDLE, digest: bytes = SO_FAR) -> LegReport:
    """The report of a decode leg whose answer told what is kept."""
    return replace(done(decision), kept=KeptTurn(json.dumps(handle).encode(), digest))


@asynccontextmanager
async def granting(fleet: Fleet) -> AsyncGenerator[None]:
    """With its background work; at the end, lets it settle."""
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(fleet.unreported.run())
        yield
        for seconds in (0, 2):
            await fleet.clock.advance(seconds)
        loop.cancel()


class TestGrants:
    async def test_what_an_answer_tells_is_leased(self) -> None:
        """For the engine's own TTL, under the turn's session and messages."""
        fleet = stock_fleet()
        async with granting(fleet):
            turn = replace(next_turn(), session_key=key(""), message_digests=(b"m1", b"m2"))
            decision = await fleet.router.decide(turn)
            assert decision.decode.fixed_retention == TRUSTED
            assert decision.decode.kv_transfer_params == b""
            await fleet.router.report(reported(decision))
        [(leased, ttl)] = fleet.fixed.leased
        assert ttl == 480.0
        assert (leased.engine, leased.engine_epoch) == ("engines/d", 1)
        assert leased.session_key == decision.session_key
        assert leased.decision_id == decision.decision_id
        assert (leased.retention_id, leased.tokens, leased.blocks) == ("chatcmpl-1-0-8f", 300, 3)
        assert (leased.message_digest, leased.history_digest) == (b"m2", SO_FAR)
        assert json.loads(leased.handle.kv_transfer_params) == HANDLE

    async def test_its_time_counts_from_the_decision(self) -> None:
        """The engine's began when it ended the turn, at the earliest then."""
        fleet = stock_fleet()
        async with granting(fleet):
            decision = await fleet.router.decide(next_turn())
            await fleet.clock.advance(100)
            await fleet.router.report(reported(decision))

        [(_, ttl)] = fleet.fixed.leased
        assert ttl == 380.0

    async def test_a_report_that_comes_twice_is_leased_once(self) -> None:
        """And so is one of a turn that nobody knows."""
        fleet = stock_fleet()
        async with granting(fleet):
            decision = await fleet.router.decide(subject())
            for _ in range(2):
                await fleet.router.report(reported(decision))
            await fleet.router.report(reported(replace(decision, decision_id="other")))
        assert len(fleet.fixed.leased) == 1

    @pytest.mark.parametrize(
        "handle",
        [
            [],
            {},
            {**HANDLE, "do_remote_decode": False},
            {**HANDLE, "remote_request_id": None},
            {**HANDLE, "remote_num_tokens": 0},
            {**HANDLE, "remote_block_ids": [[]]},
            {**HANDLE, "remote_block_ids": None},
        ],
    )
    async def test_what_names_nothing_is_not_leased(self, handle: object) -> None:
        """A handle that is not vLLM's of a decode engine is passed over."""
        fleet = stock_fleet()
        async with granting(fleet):
            await fleet.router.report(reported(await fleet.router.decide(subject()), handle))
        assert fleet.fixed.leased == []

    @pytest.mark.parametrize(
        "outcome", [RouteOutcome.FAILED, RouteOutcome.CANCELLED, RouteOutcome.REFUSED]
    )
    async def test_a_turn_that_failed_leaves_nothing(self, outcome: RouteOutcome) -> None:
        """Whatever its report carries."""
        fleet = stock_fleet()
        async with granting(fleet):
            decision = await fleet.router.decide(subject())
            await fleet.router.report(replace(reported(decision), outcome=outcome))
        assert fleet.fixed.leased == []

    @pytest.mark.parametrize("fixed", [None, TRUSTED])
    async def test_a_turn_that_streamed_leaves_nothing_and_that_is_said(
        self, fixed: FixedRetention | None
    ) -> None:
        """Its answer told nothing; the explanation of the next turn says what is lost."""
        fleet = stock_fleet(fixed)
        await fleet.router.report(done(await fleet.router.decide(subject())))
        second = await fleet.router.decide(subject())
        assert (second.strategy, second.reason) == (Strategy.RECOMPUTE, DecisionReason.NO_LEASE)
        assert second.waited == 0.0
        explained = fleet.explainer.explain(subject())
        assert explained.decision is not None
        told = "do not stream only, for 480 s or one read" if fixed else "not known to keep turns"
        assert "engines/d runs the stock connector" in explained.decision.details
        assert explained.decision.details.endswith(told)

    async def test_a_manager_that_is_away_is_asked_again(self) -> None:
        """The lease is as much shorter."""
        fleet = stock_fleet()
        fleet.fixed.away = 1
        async with granting(fleet):
            await fleet.router.report(reported(await fleet.router.decide(subject())))
        [(_, ttl)] = fleet.fixed.leased
        assert 479.0 <= ttl < 480.0

    async def test_a_manager_that_stays_away_is_given_up(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With a line in the log."""
        fleet = stock_fleet()
        fleet.fixed.away = 99
        async with granting(fleet):
            await fleet.router.report(reported(await fleet.router.decide(subject())))
        assert fleet.fixed.leased == []
        assert "a retention of engines/d is not leased: no store" in caplog.text

    async def test_the_next_turn_waits_for_the_lease(self) -> None:
        """A turn that comes at once finds what the last one left."""
        fleet = stock_fleet()
        first = await fleet.router.decide(subject())
        await fleet.router.report(reported(first))
        async with asyncio.TaskGroup() as tasks:
            second = tasks.create_task(fleet.router.decide(next_turn()))
            await fleet.clock.wait_for_sleepers()
            fleet.grant(kept_lease(decision_id=first.decision_id))
        assert second.result().strategy is Strategy.PULL


class TestReads:
    async def test_a_trusted_history_is_read_once(self) -> None:
        """The first turn that continues it pulls; a retry recomputes, and says why."""
        fleet = stock_fleet()
        held = fleet.grant(kept_lease())

        first = await fleet.router.decide(next_turn())
        assert (first.strategy, first.lease) == (Strategy.PULL, held.name)
        assert first.prefill is not None
        assert json.loads(first.prefill.kv_transfer_params) == HANDLE
        retry = await fleet.router.decide(next_turn())

        assert (retry.strategy, retry.reason) == (
            Strategy.RECOMPUTE,
            DecisionReason.STOCK_CONNECTOR,
        )
        assert f"{held.name} is given out already" in retry.details
        assert fleet.fixed.consumed == [held.name]
        assert fleet.claims.held == []

    async def test_a_turn_counts_while_its_read_is_asked_for(self) -> None:
        """Decisions in the meantime see its legs; once it is refused only its new ones count."""
        fleet = stock_fleet()
        held = fleet.grant(kept_lease())
        fleet.fixed.hurdle = asyncio.Event()
        fleet.fixed.consumed.append(held.name)
        async with asyncio.TaskGroup() as tasks:
            turn = tasks.create_task(fleet.router.decide(next_turn()))
            await fleet.clock.wait_for_sleepers()
            assert len(fleet.in_flight) == 1
            fleet.fixed.hurdle.set()

        decision = turn.result()
        assert decision.strategy is Strategy.RECOMPUTE
        assert len(fleet.in_flight) == 1
        await fleet.router.report(done(decision))
        assert len(fleet.in_flight) == 0

    async def test_what_changed_while_a_read_was_refused_is_seen(self) -> None:
        """The engine that would have read is gone by then: the turn is weighed anew."""
        fleet = stock_fleet()
        fleet.put(prefill("p1", connector=STOCK))
        held = fleet.grant(kept_lease())
        fleet.fixed.hurdle = asyncio.Event()
        fleet.fixed.consumed.append(held.name)
        async with asyncio.TaskGroup() as tasks:
            turn = tasks.create_task(fleet.router.decide(next_turn()))
            await fleet.clock.wait_for_sleepers()
            fleet.remove("p")
            fleet.fixed.hurdle.set()

        leg = turn.result().prefill
        assert leg is not None
        assert leg.engine == "engines/p1"

    async def test_a_read_is_waited_for_a_second(self) -> None:
        """By the router's clock; then the prompt is computed, and nothing stays counted twice."""
        fleet = stock_fleet()
        fleet.grant(kept_lease())
        fleet.fixed.hurdle = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            turn = tasks.create_task(fleet.router.decide(next_turn()))
            await fleet.clock.wait_for_sleepers()
            await fleet.clock.advance(1.0)

        assert turn.result().strategy is Strategy.RECOMPUTE
        assert "in time" in turn.result().details
        assert len(fleet.in_flight) == 1

    async def test_a_turn_that_is_given_up_is_not_counted(self) -> None:
        """Its caller goes away while the read is asked for."""
        fleet = stock_fleet()
        fleet.grant(kept_lease())
        fleet.fixed.hurdle = asyncio.Event()
        turn = asyncio.ensure_future(fleet.router.decide(next_turn()))
        await fleet.clock.wait_for_sleepers()
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)

        assert len(fleet.in_flight) == 0

    async def test_of_many_at_once_one_reads(self) -> None:
        """Forks of a session do not share what a read consumes."""
        fleet = stock_fleet()
        fleet.grant(kept_lease())

        decisions = await asyncio.gather(*(fleet.router.decide(next_turn()) for _ in range(8)))

        assert [one.strategy for one in decisions].count(Strategy.PULL) == 1

    async def test_a_lease_that_is_given_out_is_no_lease(self) -> None:
        """Once the view hears of it the decision says that the read consumed it."""
        fleet = stock_fleet()
        held = fleet.grant(kept_lease())
        fleet.grant(replace(held, state=LeaseState.RELEASING, release_reason=EndReason.CONSUMED))

        decision = await fleet.router.decide(next_turn())

        assert decision.reason is DecisionReason.LEASE_ENDED
        assert "a read consumes it" in decision.details
        assert fleet.fixed.consumed == []

    @pytest.mark.parametrize(
        ("fixed", "retained", "asked", "why"),
        [
            (None, SO_FAR, SO_FAR, "cannot prove"),
            (FixedRetention(480.0), SO_FAR, SO_FAR, "cannot prove"),
            (TRUSTED, b"", SO_FAR, "cannot be compared"),
            (TRUSTED, b"", b"", "cannot be compared"),
            (TRUSTED, SO_FAR, b"", "not known to continue"),
            (TRUSTED, SO_FAR, b"edited", "not known to continue"),
        ],
    )
    async def test_doubt_recomputes(
        self, fixed: FixedRetention | None, retained: bytes, asked: bytes, why: str
    ) -> None:
        """Nothing is read that may be of other tokens, and the read stays to be had."""
        fleet = stock_fleet(fixed)
        fleet.grant(kept_lease(history_digest=retained))

        decision = await fleet.router.decide(next_turn(asked))

        assert (decision.strategy, decision.reason) == (
            Strategy.RECOMPUTE,
            DecisionReason.STOCK_CONNECTOR,
        )
        assert why in decision.details
        assert fleet.fixed.consumed == []
        with pytest.raises(StrategyImpossible, match=why):
            await fleet.router.decide(next_turn(asked), forced=Strategy.PULL)

    async def test_explaining_takes_no_read(self) -> None:
        """It shows what would be read."""
        fleet = stock_fleet()
        fleet.grant(kept_lease())

        explained = fleet.explainer.explain(next_turn())

        assert explained.decision is not None
        assert explained.decision.strategy is Strategy.PULL
        assert fleet.fixed.consumed == []

    async def test_a_turn_served_alone_gets_no_parameters(self) -> None:
        """What the stock connector keeps for those has no time limit."""
        fleet = stock_fleet()
        fleet.grant(kept_lease())

        decision = await fleet.router.decide(next_turn(), forced=Strategy.LOCAL)

        assert (decision.prefill, decision.decode.kv_transfer_params) == (None, b"")
        assert fleet.fixed.consumed == []
