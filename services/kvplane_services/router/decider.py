"""Decides turns from the local view; see `router.ports.Router`."""

import asyncio
import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

from kvplane_services.clock import Clock
from kvplane_services.engine.model import ConnectorKind
from kvplane_services.errors import StrategyImpossible, Unavailable
from kvplane_services.lease.model import Lease
from kvplane_services.router.assessment import Assessment, assess, cannot_decode
from kvplane_services.router.config import RouterConfig
from kvplane_services.router.decisions import make_decision, message_digest, validate
from kvplane_services.router.expected import ExpectedRetentions
from kvplane_services.router.inflight import InFlight, Turn
from kvplane_services.router.model import (
    Decision,
    KeptTurn,
    LegKind,
    LegReport,
    RouteOutcome,
    Strategy,
    Subject,
)
from kvplane_services.router.recognition import Recognised, recognise
from kvplane_services.router.strategy import Choice, Situation, choose
from kvplane_services.router.view import RouterView
from kvplane_services.session.model import SessionKey
from kvplane_services.store.requests import RequestMemory

_log = logging.getLogger(__name__)


class Claims(Protocol):
    """Keeps leases claimed while turns use them; neither method waits."""

    def claim(self, lease: str, fencing_token: int, *, turn: str) -> None:
        """Claims a lease for one more turn, named by its decision."""
        ...

    def drop(self, lease: str, *, turn: str) -> None:
        """Gives up a turn's claim, if it has one still."""
        ...


class Unreported(Protocol):
    """Retentions of engines that report none; see `FixedRetentions`."""

    def begin(self, decision: Decision, *, message_digest: bytes) -> None:
        """Notes a turn."""
        ...

    def end(self, decision_id: str, kept: KeptTurn | None) -> bool:
        """Has what the turn left leased; False if it left nothing that is known."""
        ...

    async def consume(self, lease: Lease) -> str | None:
        """Takes the one read of a retention; why it is not to be had, or None."""
        ...


class Decider:
    """Implements `router.ports.Router` in process.

    A decision makes no remote call and waits for one thing only: the report of the
    session's last turn, if it is due any moment. But for engines with the stock connector whose
    history is trusted: their retentions can be read once, so the read is asked for.

    Args:
        view: What is known of engines and leases.
        in_flight: Counts turns; shared with whoever explains decisions.
        claims: Keeps the leases of turns in flight.
        unreported: Retentions of engines with the stock connector.
        config: The numbers.
        clock: Tells the time.
        new_id: Makes ids that never repeat.

    """

    def __init__(
        self,
        *,
        view: RouterView,
        in_flight: InFlight,
        claims: Claims,
        unreported: Unreported,
        config: RouterConfig,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._view = view
        self._in_flight = in_flight
        self._claims = claims
        self._unreported = unreported
        self._config = config
        self._clock = clock
        self._new_id = new_id
        self._expected = ExpectedRetentions(
            duration=config.retention_expected, memory=config.memory
        )
        # Futures, so that a retry which overtakes the first call waits for its answer.
        self._answers: RequestMemory[asyncio.Future[Decision]] = RequestMemory(limit=config.answers)
        view.on_retained(self._note_retained)

    async def decide(
        self,
        subject: Subject,
        *,
        forced: Strategy | None = None,
        request_id: str = "",
        excluded: AbstractSet[str] = frozenset(),
    ) -> Decision:
        """See `Router.decide`."""
        validate(subject)
        if not request_id:
            return await self._decide(subject, forced, excluded)
        asked, now = (subject, forced, excluded), self._clock.now()
        answer = self._answers.find(request_id, asked, now)
        if answer is None:
            answer = asyncio.get_running_loop().create_future()
            self._answers.remember(request_id, asked, answer, now)
            try:
                answer.set_result(await self._decide(subject, forced, excluded))
            except BaseException:
                # The next request of this id decides anew; those that wait retry it too.
                self._answers.forget(request_id)
                answer.cancel()
                raise
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not answer.cancelled():
                raise
        raise Unavailable(
            f"the request {request_id} that this one repeats failed; retry",
            retry_after=self._config.retry_after,
        )

    async def report(self, report: LegReport) -> None:
        """See `Router.report`."""
        turn = self._release(report.decision_id, report.leg)
        if turn is None or report.leg is not LegKind.DECODE:
            return
        kept = report.kept if report.outcome is RouteOutcome.SUCCEEDED else None
        leased = self._unreported.end(turn.decision_id, kept)
        retains = report.outcome is RouteOutcome.SUCCEEDED and self._retains(turn.decode_engine)
        if leased or retains:
            self._expected.expect(turn.session_key, turn.decision_id, self._clock.now())

    async def models(self) -> tuple[str, ...]:
        """See `Router.models`."""
        self._view.lapse()
        return self._view.served_models()

    async def _decide(
        self, subject: Subject, forced: Strategy | None, excluded: AbstractSet[str]
    ) -> Decision:
        self._view.lapse()
        self._sweep()
        session = recognise(
            subject, view=self._view, in_flight=self._in_flight, new_id=self._new_id
        )
        waited = await self._await_retention(session.source)
        # From weighing to counting there is no await: what is counted is what was weighed.
        situation, choice = self._weigh(subject, session, forced, excluded)
        decision = make_decision(
            subject,
            session,
            situation,
            choice,
            decision_id=self._new_id(),
            ttl=self._config.decision_ttl,
            waited=waited,
        )
        self._in_flight.acquire(decision, self._clock.now())
        if choice.strategy is Strategy.PULL and situation.lease and situation.lease.ttl:
            refused = await self._consume(decision, situation.lease)
            if refused is not None:
                # Other turns were decided meanwhile, and leases and engines came and went.
                situation, choice = self._weigh(subject, session, forced, excluded, refused=refused)
                decision = make_decision(
                    subject,
                    session,
                    situation,
                    choice,
                    decision_id=decision.decision_id,
                    ttl=self._config.decision_ttl,
                    waited=waited,
                )
                self._in_flight.acquire(decision, self._clock.now())
        self._unreported.begin(decision, message_digest=message_digest(subject))
        # A lease of fixed length gets no longer by being claimed.
        if decision.lease and situation.lease and not situation.lease.ttl:
            self._claims.claim(decision.lease, decision.fencing_token, turn=decision.decision_id)
        if subject.message_digests and not subject.session_key.session_id:
            self._view.remember_messages(session.key, subject.message_digests[-1])
        return decision

    def _weigh(
        self,
        subject: Subject,
        session: Recognised,
        forced: Strategy | None,
        excluded: AbstractSet[str],
        *,
        refused: str = "",
    ) -> tuple[Situation, Choice]:
        """What is so now, and what to do about it; `refused` says why a read is not to be had."""
        self._in_flight.admit()
        model = session.key.model
        assessment = assess(
            session,
            self._view.serving(model),
            view=self._view,
            in_flight=self._in_flight,
            config=self._config,
            excluded=excluded,
            history_digest=subject.history_digest,
        )
        if assessment.situation is None:
            raise cannot_decode(model, assessment.decodes, view=self._view, config=self._config)
        situation = replace(assessment.situation, refused=refused)
        return situation, self._choose(assessment, situation, forced)

    async def _consume(self, decision: Decision, lease: Lease) -> str | None:
        """Takes the read that a decision needs; why it is not to be had, or None.

        The decision is counted while it waits: turns that are decided in that time would else
        take its engines for free. It is counted no longer if it gets no read.
        """
        refused: str | None = "the turn was given up"
        try:
            refused = await self._unreported.consume(lease)
        finally:
            if refused is not None:
                self._in_flight.release(decision.decision_id, LegKind.DECODE)
        return refused

    def _choose(
        self, assessment: Assessment, situation: Situation, forced: Strategy | None
    ) -> Choice:
        try:
            return choose(situation, forced)
        except StrategyImpossible as error:
            others = [one for one in assessment.prefills if one.engine != situation.decode]
            if others or not self._view.settling:
                raise
            raise Unavailable(
                f"{error.message} This router has just started, and no prefill engine has "
                "registered yet: retry.",
                retry_after=self._config.retry_after,
                **error.metadata,
            ) from error

    async def _await_retention(self, key: SessionKey) -> float:
        """Waits for the session's expected retention, and returns for how long."""
        start = self._clock.now()
        decision_id = self._expected.of(key, start)
        if decision_id is None:
            return 0.0
        if not self._view.was_retained(decision_id):
            await self._view.wait_retained(decision_id, self._config.retention_wait)
        if self._expected.of(key, start) == decision_id:
            self._expected.settle(key)
        return self._clock.now() - start

    def _release(self, decision_id: str, leg: LegKind) -> Turn | None:
        turn = self._in_flight.release(decision_id, leg)
        if turn is not None and turn.lease:
            # The first leg of such a turn is the one that used the lease: after a pull the
            # decode engine reads the prefill engine's blocks.
            self._claims.drop(turn.lease, turn=turn.decision_id)
        return turn

    def _note_retained(self, decision_id: str) -> None:
        # What an engine retains is of a turn that is over, whether or not its report comes: the
        # gateway may have lost sight of this router.
        self._release(decision_id, LegKind.DECODE)

    def _retains(self, engine_name: str) -> bool:
        engine = self._view.engine(engine_name)
        return engine is not None and engine.build.connector is ConnectorKind.KVPLANE

    def _sweep(self) -> None:
        for turn in self._in_flight.sweep(self._clock.now()):
            _log.warning("the outcome of decision %s was never reported", turn.decision_id)
            if turn.lease:
                self._claims.drop(turn.lease, turn=turn.decision_id)
