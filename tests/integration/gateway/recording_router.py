"""A router for tests: decides as told, and records what it is asked and told."""

import asyncio
import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from kvplane.transfer_params import KEY, LOCAL_ONLY, PREFILL_ONLY
from kvplane_services.engine.model import FixedRetention
from kvplane_services.errors import KvplaneError, StrategyImpossible, Unavailable
from kvplane_services.router.model import (
    Decision,
    DecisionReason,
    Leg,
    LegKind,
    LegReport,
    RouteOutcome,
    Strategy,
    Subject,
)

MARK = {"session": ["t", "m", "", "s"], "decision_id": "d", "message_digest": ""}


@dataclass
class RecordingRouter:
    """Picks the first engine of each kind that is not excluded."""

    prefills: Sequence[str] = ()
    decodes: Sequence[str] = ()
    served: tuple[str, ...] = ("tiny",)
    fails_with: KvplaneError | None = None
    # Holds decisions back until it is set.
    gate: asyncio.Event | None = None
    subjects: list[Subject] = field(default_factory=list)
    forced: list[Strategy | None] = field(default_factory=list)
    excluded: list[frozenset[str]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    reports: list[LegReport] = field(default_factory=list)
    rank: int | None = None
    # Whether turns that nobody forces are pulls.
    pulls: bool = False
    # Set if the engines run the stock connector.
    fixed_retention: FixedRetention | None = None
    report_takes: float = 0.0
    # Set when a turn was to be decided.
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    _reported: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def decide(
        self,
        subject: Subject,
        *,
        forced: Strategy | None = None,
        request_id: str = "",
        excluded: AbstractSet[str] = frozenset(),
    ) -> Decision:
        self.subjects.append(subject)
        self.forced.append(forced)
        self.excluded.append(frozenset(excluded))
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.fails_with is not None:
            raise self.fails_with
        prefill = next((url for url in self.prefills if _name(url) not in excluded), None)
        decode = next((url for url in self.decodes if _name(url) not in excluded), None)
        if decode is None:
            raise Unavailable("no engine can decode now", retry_after=2.0)
        if forced is Strategy.RECOMPUTE and prefill is None:
            raise StrategyImpossible("no prefill engine")
        if forced is Strategy.LOCAL:
            prefill = None
        key = subject.session_key
        decision = Decision(
            decision_id=f"decision-{len(self.decisions)}",
            strategy=self._strategy(forced, prefill),
            reason=DecisionReason.NO_LEASE,
            details="",
            prefill=None if prefill is None else self._leg(prefill, dict(PREFILL_ONLY)),
            decode=self._decode_leg(decode, alone=prefill is None),
            session_key=replace(key, session_id=key.session_id or "implicit"),
            ttl=60.0,
        )
        self.decisions.append(decision)
        return decision

    async def report(self, report: LegReport) -> None:
        if self.report_takes:
            await asyncio.sleep(self.report_takes)
        self.reports.append(report)
        async with self._reported:
            self._reported.notify_all()

    async def models(self) -> tuple[str, ...]:
        return self.served

    def outcomes(self) -> list[tuple[str, LegKind, RouteOutcome]]:
        """Every report as decision, leg, outcome; sorted."""
        return sorted(
            ((one.decision_id, one.leg, one.outcome) for one in self.reports),
            key=lambda one: (one[0], one[1].value),
        )

    async def all_reported(self) -> None:
        """Returns once each leg of each decision is reported; fails if one is so twice."""
        async with asyncio.timeout(2), self._reported:
            await self._reported.wait_for(lambda: len(self.reports) >= self._legs())
        await asyncio.sleep(0.01)
        seen = [(one.decision_id, one.leg) for one in self.reports]
        assert len(seen) == len(set(seen)) == self._legs()

    def _strategy(self, forced: Strategy | None, prefill: str | None) -> Strategy:
        if prefill is None:
            return Strategy.LOCAL
        return Strategy.PULL if self.pulls and forced is None else Strategy.RECOMPUTE

    def _legs(self) -> int:
        return sum(1 if one.prefill is None else 2 for one in self.decisions)

    def _decode_leg(self, url: str, *, alone: bool) -> Leg:
        if self.fixed_retention is not None:
            leg = replace(self._leg(url, {}), kv_transfer_params=b"")
            return replace(leg, fixed_retention=self.fixed_retention)
        return self._leg(url, {**LOCAL_ONLY, KEY: MARK} if alone else {KEY: MARK})

    def _leg(self, url: str, params: dict[str, object]) -> Leg:
        return Leg(
            engine=_name(url),
            epoch=1,
            endpoint=url,
            kv_transfer_params=json.dumps(params).encode(),
            data_parallel_rank=self.rank,
        )


def _name(url: str) -> str:
    return f"engines/{url.rpartition(':')[2]}"
