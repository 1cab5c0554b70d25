"""Decode engines under a trace: who waits, what is kept, what is found again.

A turn needs memory for its context and its whole reply when it starts, decodes at a fixed pace,
and leaves its context. Prefill and transfers take no time. What is kept is given up where a
request would have to wait, in the order of the rule's ranks.
"""

import heapq
from dataclasses import dataclass, field

from kvplane_services.bench.retention.engine import Held, Running, SimulatedEngine
from kvplane_services.bench.retention.rules import Rule
from kvplane_services.bench.retention.trace import TRACE_BLOCK, Turn
from kvplane_services.lease.policy import Holding, leases_to_keep
from kvplane_services.lease.worth import RecomputeCost

# Seconds between two looks at what is over.
_TICK = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What is simulated.

    Args:
        capacity: Memory of each engine in tokens.
        engines: How many.
        per_token: Seconds that decoding a token takes.
        budget: Part of an engine's memory that retentions may take.
        partial: Whether the end of a retention may be given up by itself.

    """

    capacity: int
    engines: int = 4
    per_token: float = 0.02
    budget: float = 1.0
    partial: bool = False


@dataclass(slots=True)
class Outcome:
    """What came of a run; times in seconds, work in milliseconds of recomputing."""

    saved: float = 0.0
    net: float = 0.0
    reused: int = 0
    makespan: float = 0.0
    waits: list[float] = field(default_factory=list)

    def wait(self, part: float) -> float:
        """That quantile of the waits."""
        ordered = sorted(self.waits)
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


class Simulation:
    """One run over a trace."""

    def __init__(
        self,
        turns: list[Turn],
        rule: Rule,
        setting: Setting,
        cost: RecomputeCost,
        prefill_hits: list[int],
    ) -> None:
        self._turns = turns
        self._rule = rule
        self._setting = setting
        self._cost = cost
        self._prefill_hits = prefill_hits
        self._engines = [
            SimulatedEngine(number, setting.capacity) for number in range(setting.engines)
        ]
        self._where: dict[int, SimulatedEngine] = {}
        self._ends: list[tuple[float, int, SimulatedEngine, Running]] = []
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Runs the whole trace."""
        tick = 0.0
        arrivals = iter(self._turns)
        turn = next(arrivals, None)
        while turn is not None or self._ends or any(one.waiting for one in self._engines):
            now = min(
                turn.at if turn is not None else float("inf"),
                self._ends[0][0] if self._ends else float("inf"),
                tick,
            )
            if now == tick:
                self._rule.tick(now)
                for engine in self._engines:
                    if self._setting.budget < 1:
                        self._make_room(
                            engine,
                            int(engine.capacity * (1 - self._setting.budget)) - engine.in_flight,
                            now,
                        )
                    self._start_waiting(engine, now)
                tick += _TICK
            elif self._ends and self._ends[0][0] == now:
                _, _, engine, running = heapq.heappop(self._ends)
                self._end(engine, running, now)
            elif turn is not None:
                self._arrive(turn, now)
                turn = next(arrivals, None)
        return self._outcome

    def _arrive(self, turn: Turn, now: float) -> None:
        source = self._source(turn)
        engine = self._where[source.turn.number] if source is not None else self._emptiest()
        need = turn.tokens
        if source is not None:
            found = min(turn.shared, source.tokens)
            self._outcome.reused += found
            self._outcome.saved += self._cost.of(found)
            hit = self._prefill_hits[turn.number]
            self._outcome.net += max(self._cost.of(found) - self._cost.of(hit), 0.0)
            if source.claimed:
                # A fork: the turn that came first takes the blocks over.
                source = None
            else:
                source.claimed = True
                self._rule.back(source, now)
                need -= found
        engine.waiting.append(Running(turn, need, source))
        self._start_waiting(engine, now)

    def _source(self, turn: Turn) -> Held | None:
        if turn.parent is None:
            return None
        engine = self._where.get(turn.parent.number)
        return engine.held[turn.parent.number] if engine is not None else None

    def _emptiest(self) -> SimulatedEngine:
        return min(self._engines, key=lambda one: (one.wanted, one.number))

    def _start_waiting(self, engine: SimulatedEngine, now: float) -> None:
        while engine.waiting:
            first = engine.waiting[0]
            if not self._make_room(engine, first.need, now):
                return
            engine.waiting.popleft()
            engine.in_flight += first.need
            self._outcome.waits.append(now - first.turn.at)
            end = now + first.turn.reply * self._setting.per_token
            heapq.heappush(self._ends, (end, first.turn.number, engine, first))

    def _make_room(self, engine: SimulatedEngine, need: int, now: float) -> bool:
        if engine.free >= need:
            return True
        rule = self._rule
        cheap = [
            (rule.rank(held, now), held.turn.number, held)
            for held in engine.held.values()
            if not held.claimed and now - held.since >= rule.unbreakable
        ]
        if engine.free + sum(held.tokens for _, _, held in cheap) < need:
            return False
        heapq.heapify(cheap)
        while engine.free < need:
            _, _, held = heapq.heappop(cheap)
            rule.gone(held)
            surplus = engine.free + held.tokens - need
            if self._setting.partial and surplus >= TRACE_BLOCK:
                engine.held_tokens -= held.tokens - surplus
                held.tokens = surplus
            else:
                self._drop(held)
        return True

    def _keep_within_budget(self, engine: SimulatedEngine, now: float) -> None:
        budget = self._setting.budget * engine.capacity
        if not self._rule.keeps or engine.held_tokens <= budget:
            return
        kept = leases_to_keep(
            (
                Holding(
                    lease_id=str(number),
                    blocks=held.tokens,
                    fencing_token=number,
                    idle=now - held.since,
                    claimed=held.claimed,
                    worth=self._rule.rank(held, now),
                )
                for number, held in engine.held.items()
            ),
            budget_blocks=budget,
            idle_keep=float("inf"),
        )
        for held in list(engine.held.values()):
            # A turn that reads it holds it meanwhile.
            if str(held.turn.number) not in kept and not held.claimed:
                self._drop(held)

    def _drop(self, held: Held) -> None:
        self._where.pop(held.turn.number).drop(held)

    def _end(self, engine: SimulatedEngine, running: Running, now: float) -> None:
        turn = running.turn
        self._outcome.makespan = now
        engine.in_flight -= running.need
        if running.source is not None:
            self._drop(running.source)
        if self._rule.keeps:
            held = Held(turn, now, turn.tokens)
            self._rule.end(held, now)
            engine.hold(held)
            self._where[turn.number] = engine
            if engine.free < 0:
                self._make_room(engine, 0, now)
        self._start_waiting(engine, now)


def prefill_hits(turns: list[Turn], tokens: int) -> list[int]:
    """What a prefill side finds in a prefix cache of its own, by turn; the oldest goes first."""
    cache: dict[int, int] = {}
    used = 0
    hits: list[int] = []
    for turn in turns:
        cached = cache.pop(turn.parent.number, 0) if turn.parent is not None else 0
        used -= cached
        hits.append(min(cached, turn.shared))
        cache[turn.number] = turn.prompt
        used += turn.prompt
        while used > tokens and cache:
            used -= cache.pop(next(iter(cache)))
    return hits
