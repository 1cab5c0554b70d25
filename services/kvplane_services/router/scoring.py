"""Filters and scores of engines for one leg. Pure functions.

A filter says in words why an engine cannot run the leg; a score, 0 to 1, says how well it
would. Engines are ranked by the weighted sum; equals are ordered by a hash of session and
engine, so that sessions spread and each keeps its order.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kvplane_services.engine.model import Engine, EngineState
from kvplane_services.router.config import Weights
from kvplane_services.router.model import Candidate, LegKind
from kvplane_services.router.pairing import mismatch

_INACTIVE = {
    EngineState.LOST: "lost: it missed its heartbeat deadline",
    EngineState.DRAINING: "draining: it takes no new turns",
}

# How many turns are in flight on an engine, by its name and the leg.
InFlightCount = Callable[[str, LegKind], int]


@dataclass(frozen=True, slots=True)
class LegQuestion:
    """What a leg needs of an engine.

    Attributes:
        leg: Which leg.
        model: Served model name.
        excluded: Full names of engines that the caller left out.
        holder: Full name of the engine that holds the session; empty if none does.
        partners: Engines that this leg's engine exchanges blocks with.
        affinity: What spreads equals: the session's name.

    """

    leg: LegKind
    model: str
    excluded: AbstractSet[str] = frozenset()
    holder: str = ""
    partners: tuple[Engine, ...] = ()
    affinity: str = ""


@dataclass(frozen=True, slots=True)
class Ranked:
    """An engine and what the router thinks of it."""

    engine: Engine
    candidate: Candidate


def rejection(engine: Engine, question: LegQuestion) -> str:
    """Why the engine cannot run the leg; empty if it can."""
    if engine.name in question.excluded:
        return "excluded by the caller"
    if question.model not in engine.models:
        return f"serves {', '.join(engine.models)}, not {question.model}"
    if engine.state is not EngineState.ACTIVE:
        return _INACTIVE[engine.state]
    for partner in question.partners:
        if partner.name == engine.name:
            return "runs the other leg of this turn"
        words = mismatch(engine, partner)
        if words:
            return words
    return ""


def scores(engine: Engine, question: LegQuestion, in_flight: int) -> Mapping[str, float]:
    """Each score by name, 0 to 1."""
    load = {"in_flight": 1 / (1 + in_flight)}
    if question.leg is LegKind.PREFILL:
        return load
    return {
        "holder": float(engine.name == question.holder),
        **load,
        "waiting": 1 / (1 + engine.load.waiting_requests),
        "room": _room(engine),
    }


def rank(
    engines: Iterable[Engine],
    question: LegQuestion,
    *,
    weights: Weights,
    in_flight: InFlightCount,
) -> Sequence[Ranked]:
    """Every engine whose role fits the leg: usable ones best first, then the rejected."""
    weight = {
        "holder": weights.holder,
        "in_flight": weights.in_flight,
        "waiting": weights.waiting,
        "room": weights.room,
    }
    ranked: list[Ranked] = []
    for engine in engines:
        fits = engine.role.prefills if question.leg is LegKind.PREFILL else engine.role.decodes
        if not fits:
            continue
        count = in_flight(engine.name, question.leg)
        parts = scores(engine, question, count)
        candidate = Candidate(
            engine=engine.name,
            leg=question.leg,
            score=sum(weight[name] * score for name, score in parts.items()),
            scores=parts,
            rejection=rejection(engine, question),
            in_flight=count,
        )
        ranked.append(Ranked(engine=engine, candidate=candidate))

    def order(one: Ranked) -> tuple[bool, float, bytes]:
        candidate = one.candidate
        return bool(candidate.rejection), -candidate.score, _spread(one.engine, question)

    return sorted(ranked, key=order)


def best(ranked: Sequence[Ranked]) -> Engine | None:
    """The first usable engine."""
    if ranked and not ranked[0].candidate.rejection:
        return ranked[0].engine
    return None


def _room(engine: Engine) -> float:
    """Share of the KV cache that retentions leave; 1 where the engine says nothing."""
    if engine.layout is None or engine.layout.total_blocks <= 0:
        return 1.0
    return min(1.0, max(0.0, 1 - engine.load.retained_blocks / engine.layout.total_blocks))


def _spread(engine: Engine, question: LegQuestion) -> bytes:
    text = f"{question.affinity}\0{engine.name}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
