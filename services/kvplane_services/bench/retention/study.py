"""Runs each rule at each capacity over one trace, and makes a document of it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvplane_services.bench.load_engine import BenchError
from kvplane_services.bench.retention.rules import (
    ByWorth,
    FixedTime,
    GreedyDual,
    Hints,
    LeastRecent,
    Rule,
)
from kvplane_services.bench.retention.simulation import (
    Outcome,
    Setting,
    Simulation,
    prefill_hits,
)
from kvplane_services.bench.retention.trace import Turn
from kvplane_services.lease.return_kinds import Hint
from kvplane_services.lease.worth import RecomputeCost

# What vLLM keeps a finished request for, in seconds.
_STOCK = 480.0
_SEED = 1


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """What to run.

    Args:
        capacities: Memory of all engines, in percent of what keeping everything would take.
        keep_all: That, in tokens; 0 to take it from the trace.
        engines: How many share the memory.
        hints: Part of the conversations whose client says whether it stays.
        wrong: Part of their turns with a next one of which they say that it was the last.
        budget: Part of the memory that retentions may take.

    """

    capacities: Sequence[float] = (1, 2, 5, 10, 20)
    keep_all: int = 0
    engines: int = 4
    hints: float = 0.5
    wrong: float = 0.0
    budget: float = 1.0


def run_study(
    turns: list[Turn], options: StudyOptions, *, say: Callable[[str], None]
) -> dict[str, Any]:
    """All rules; the document has percents of what keeping everything saves, and seconds."""
    cost = RecomputeCost()
    most = sum(cost.of(turn.shared) for turn in turns)
    keep_all = options.keep_all or sum(turn.tokens for turn in turns if turn.final)
    hints = hints_of(turns, options.hints, wrong=options.wrong)
    # No rule without hints sees any.
    _check_room(turns, options, keep_all)
    rules: dict[str, Callable[[], Rule]] = {
        "nothing": Rule,
        "stock 480 s": lambda: FixedTime(_STOCK),
        "LRU": lambda: LeastRecent({}),
        "GDSF": lambda: GreedyDual(cost),
        "kvplane": lambda: ByWorth(cost, {}),
        "LRU, hints": lambda: LeastRecent(hints),
        "kvplane, hints": lambda: ByWorth(cost, hints),
    }
    runs: list[dict[str, Any]] = []
    for percent in options.capacities:
        total = int(keep_all * percent / 100)
        cached = prefill_hits(turns, total)
        nothing = 0.0
        for name, make in rules.items():
            setting = Setting(
                capacity=total // options.engines, engines=options.engines, budget=options.budget
            )
            outcome = Simulation(turns, make(), setting, cost=cost, prefill_hits=cached).run()
            nothing = nothing or outcome.makespan
            runs.append(_run(name, percent, total, outcome, most=most, nothing=nothing))
            say(f"{percent:g} %, {name}: saved {runs[-1]['saved_percent']:.1f} %")
    return {
        "turns": len(turns),
        "returns": sum(1 for turn in turns if turn.parent is not None),
        "keep_all_tokens": keep_all,
        "engines": options.engines,
        "hints": options.hints,
        "wrong_hints": options.wrong,
        "budget": options.budget,
        "runs": runs,
    }


def _check_room(turns: list[Turn], options: StudyOptions, keep_all: int) -> None:
    largest = max((turn.tokens for turn in turns), default=0)
    for percent in options.capacities:
        capacity = int(keep_all * percent / 100) // options.engines
        if capacity < largest:
            raise BenchError(
                f"{percent:g} % leaves an engine {capacity} tokens, and the longest turn needs "
                f"{largest}: take a larger capacity"
            )


def hints_of(turns: list[Turn], share: float, *, wrong: float) -> Hints:
    """What clients say after each turn: whether another one follows in the trace."""
    draw = random.Random(_SEED)  # noqa: S311 - a workload, no secret
    says: dict[int, bool] = {}
    hints: Hints = {}
    for turn in turns:
        if turn.conversation not in says:
            says[turn.conversation] = draw.random() < share
        if says[turn.conversation]:
            final = turn.final or draw.random() < wrong
            hints[turn.number] = Hint.FINAL if final else Hint.STAY
    return hints


def _run(
    name: str, percent: float, total: int, outcome: Outcome, *, most: float, nothing: float
) -> dict[str, Any]:
    return {
        "rule": name,
        "capacity_percent": percent,
        "capacity_tokens": total,
        "prefill_cache_tokens": total,
        "saved_percent": 100 * outcome.saved / most if most else 0.0,
        "saved_beside_prefill_cache_percent": 100 * outcome.net / most if most else 0.0,
        "makespan_ratio": outcome.makespan / nothing if nothing else 1.0,
        "wait_p99_s": outcome.wait(0.99),
        "waits_s": sum(outcome.waits),
    }
