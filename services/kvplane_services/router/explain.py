"""Shows what a decision would weigh, without making it."""

from dataclasses import replace

from kvplane_services.router.assessment import Assessment, assess, cannot_decode
from kvplane_services.router.config import RouterConfig
from kvplane_services.router.decisions import make_decision, validate
from kvplane_services.router.inflight import InFlight
from kvplane_services.router.model import Candidate, Decision, Explanation, Strategy, Subject
from kvplane_services.router.recognition import Recognised, recognise
from kvplane_services.router.strategy import Choice, Situation, candidates, choose
from kvplane_services.router.view import RouterView


class Explainer:
    """Explains turns from the view and the counts that decisions are made from.

    Not promised: that the next decision is the one shown. It may wait for the report of the
    session's last turn, and the view moves on.
    """

    def __init__(self, *, view: RouterView, in_flight: InFlight, config: RouterConfig) -> None:
        self._view = view
        self._in_flight = in_flight
        self._config = config

    def explain(self, subject: Subject) -> Explanation:
        """Every engine and strategy for a turn, with scores and rejections; changes nothing.

        Raises:
            InvalidRequest: The subject is malformed.

        """
        validate(subject)
        session = recognise(
            subject, view=self._view, in_flight=self._in_flight, new_id=lambda: "new"
        )
        assessment = assess(
            session,
            self._view.engines(),
            view=self._view,
            in_flight=self._in_flight,
            config=self._config,
            history_digest=subject.history_digest,
        )
        situation = assessment.situation
        if situation is None:
            failure = cannot_decode(
                session.key.model, assessment.decodes, view=self._view, config=self._config
            )
            return Explanation(
                decision=None,
                failure=failure.message,
                candidates=_candidates(assessment, None),
                strategies=(),
            )
        choice = choose(situation)
        return Explanation(
            decision=self._decision(subject, session, situation, choice),
            failure="",
            candidates=_candidates(assessment, choice),
            strategies=candidates(situation, choice),
        )

    def _decision(
        self, subject: Subject, session: Recognised, situation: Situation, choice: Choice
    ) -> Decision:
        decision = make_decision(
            subject, session, situation, choice, decision_id="", ttl=self._config.decision_ttl
        )
        if session.key.session_id == "auto-new" and not subject.session_key.session_id:
            # The id is made with the decision.
            return replace(decision, session_key=replace(session.key, session_id=""))
        return decision


def _candidates(assessment: Assessment, choice: Choice | None) -> tuple[Candidate, ...]:
    pulls = choice is not None and choice.strategy is Strategy.PULL
    prefills = assessment.readers if pulls else assessment.prefills
    return tuple(one.candidate for one in (*assessment.decodes, *prefills))
