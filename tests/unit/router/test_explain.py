import pytest

from kvplane_services.engine.model import EngineState
from kvplane_services.errors import InvalidRequest
from kvplane_services.router.model import LegKind, Strategy
from tests.unit.router.fleet import Fleet, decode, key, lease, prefill, subject


async def test_explanation_shows_every_candidate_and_changes_nothing() -> None:
    """Every engine of each leg is shown with scores, counts and rejection; nothing is counted."""
    fleet = Fleet(
        prefill("p"),
        prefill("q", block_size=64),
        decode("d"),
        decode("e", state=EngineState.DRAINING),
        decode("f", models=("other",)),
    )
    fleet.grant(lease(engine_id="d"))
    before = await fleet.router.decide(subject("other"))
    explanation = fleet.explainer.explain(subject())
    shown = {(one.engine, one.leg): one for one in explanation.candidates}
    assert set(shown) == {
        ("engines/d", LegKind.DECODE),
        ("engines/e", LegKind.DECODE),
        ("engines/f", LegKind.DECODE),
        ("engines/p", LegKind.PREFILL),
        ("engines/q", LegKind.PREFILL),
    }
    best = explanation.candidates[0]
    assert best.engine == "engines/d"
    assert best.scores["holder"] == 1.0
    assert best.in_flight == 1
    assert "draining" in shown["engines/e", LegKind.DECODE].rejection
    assert "not m" in shown["engines/f", LegKind.DECODE].rejection
    assert "block_size" in shown["engines/q", LegKind.PREFILL].rejection
    assert explanation.decision is not None
    assert explanation.decision.strategy is Strategy.PULL
    assert explanation.decision.decision_id == ""
    assert len(fleet.in_flight) == 1
    assert before.decode.engine == "engines/d"
    assert fleet.claims.held == []


async def test_strategies_say_what_speaks_against_them() -> None:
    """The chosen strategy comes first without objection; each other one has its words."""
    fleet = Fleet(prefill(), decode())
    shown = fleet.explainer.explain(subject()).strategies
    assert [one.strategy for one in shown] == [Strategy.RECOMPUTE, Strategy.LOCAL, Strategy.PULL]
    assert shown[0].rejection == ""
    assert "only if forced" in shown[1].rejection
    assert "no retention" in shown[2].rejection


async def test_failure_is_shown_instead_of_raised() -> None:
    """Where deciding would fail, the explanation says why and still shows the candidates."""
    fleet = Fleet(prefill(), decode(state=EngineState.LOST))
    explanation = fleet.explainer.explain(subject())
    assert explanation.decision is None
    assert "engines/d: lost" in explanation.failure
    assert len(explanation.candidates) == 2
    assert "no engine serves" in fleet.explainer.explain(subject(model="x")).failure


async def test_unnamed_session_is_recognised_or_left_open() -> None:
    """Without a session id the explanation shows the recognised session, or none yet."""
    fleet = Fleet(prefill(), decode())
    fleet.grant(lease("auto-x", message_digest=b"1"))
    known = fleet.explainer.explain(subject("", b"1", b"2")).decision
    assert known is not None
    assert known.session_key == key("auto-x")
    fresh = fleet.explainer.explain(subject("", b"9")).decision
    assert fresh is not None
    assert fresh.session_key.session_id == ""


def test_malformed_subject_is_refused() -> None:
    """A subject without a model is refused here as in a decision."""
    with pytest.raises(InvalidRequest):
        Fleet().explainer.explain(subject(model=""))
