"""Serves one turn: decide, run the prefill leg if there is one, run the decode leg, pass it on.

What fails, and what follows:

- The router cannot decide: the client gets its error.
- An engine refuses a leg (4xx): the client gets the engine's answer. Nothing is retried.
- The prefill leg fails: decided once more without that engine, as RECOMPUTE. Failing that, or
  if no other engine can take it, the decode engine computes the prompt itself. An engine with
  the stock connector answers with a 5xx where a read fails: it is asked again, to compute.
- A prefill leg that reads another engine's blocks does not end in time: either engine may be
  frozen. Decided once more as RECOMPUTE, without both if others are there, else without the
  owner, else with the same ones: without a handle the prefill engine waits for nobody.
- The decode leg fails before its first byte: decided once more without that engine. What the
  prefill leg handed over is not sent a second time, because the engine that failed may have
  read it, and blocks that were read may be gone.
- The decode leg breaks after its first byte: a stream ends with an error event and without
  [DONE]; any other answer becomes a 502. Nothing is retried.
- The client leaves: the running leg's connection is closed at once, by which its engine aborts.
"""

import asyncio
import logging
from collections.abc import Sequence

import msgspec
from aiohttp import web

from kvplane.transfer_params import LOCAL_ONLY
from kvplane_services.errors import KvplaneError
from kvplane_services.gateway.decode_leg import DecodeFailed, DecodeLeg
from kvplane_services.gateway.engine_answers import Params, merged
from kvplane_services.gateway.engine_client import EngineFailed
from kvplane_services.gateway.leg_runner import LegRefused, LegRunner
from kvplane_services.gateway.openai_errors import OpenAIError
from kvplane_services.gateway.prefill_leg import run_prefill
from kvplane_services.gateway.turn import Attempt, Turn
from kvplane_services.router.model import Decision, RouteOutcome, Strategy

_log = logging.getLogger(__name__)

_LOCAL_ONLY = msgspec.json.encode(LOCAL_ONLY)


class PrefillDecode:
    """Serves turns.

    Args:
        runner: Collaborators.

    """

    def __init__(self, *, runner: LegRunner) -> None:
        self._runner = runner

    async def serve(self, request: web.Request, turn: Turn) -> web.StreamResponse:
        """Answers the client.

        Raises:
            OpenAIError: The turn failed, and nothing was sent to the client yet.
            KvplaneError: The router could not decide.

        """
        run = _Run(self._runner, request, turn)
        with self._runner.telemetry.continued("turn", turn.headers):
            try:
                return await run.answer()
            except asyncio.CancelledError:
                run.cancelled()
                raise
            finally:
                run.close()


class _Run:
    """A turn on its way."""

    def __init__(self, runner: LegRunner, request: web.Request, turn: Turn) -> None:
        self._runner = runner
        self._request = request
        self._turn = turn
        self._attempts: list[Attempt] = []
        self._excluded: frozenset[str] = frozenset()
        self._decode: DecodeLeg | None = None
        # How the turn went, which is also how the legs went that are still open at its end.
        self._outcome = RouteOutcome.FAILED

    @property
    def _attempt(self) -> Attempt:
        return self._attempts[-1]

    async def answer(self) -> web.StreamResponse:
        await self._decide(self._turn.forced)
        try:
            try:
                return await self._both_legs()
            except DecodeFailed as failure:
                failed = frozenset({self._attempt.decision.decode.engine})
                if not failure.retry or not await self._decided_again(None, "decode", failed):
                    return _without_retry(failure)
            try:
                return await self._both_legs()
            except DecodeFailed as failure:
                return _without_retry(failure)
        except LegRefused as refusal:
            self._outcome = RouteOutcome.REFUSED
            # The other leg never ran.
            self._attempt.end(RouteOutcome.CANCELLED)
            return refusal.answer

    def cancelled(self) -> None:
        """The client left, or the gateway stops."""
        if self._decode is None or self._decode.outcome is not RouteOutcome.SUCCEEDED:
            self._outcome = RouteOutcome.CANCELLED
        else:
            self._outcome = RouteOutcome.SUCCEEDED

    def close(self) -> None:
        """Reports what is still open, and counts the turn."""
        for attempt in self._attempts:
            attempt.end(self._outcome)
        if self._attempts:
            decision = self._attempt.decision
            self._runner.instruments.turns.add(
                1,
                {
                    "strategy": decision.strategy.value,
                    "reason": decision.reason.value,
                    "outcome": self._outcome.value,
                },
            )

    async def _both_legs(self) -> web.StreamResponse:
        params = await self._hand_over()
        self._decode = DecodeLeg(
            runner=self._runner, request=self._request, turn=self._turn, attempt=self._attempt
        )
        answer = await self._decode.run(params)
        self._outcome = self._decode.outcome
        return answer

    async def _decide(self, forced: Strategy | None) -> None:
        with self._runner.telemetry.span("decision"):
            decision = await self._runner.decisions.of(
                self._turn.subject, forced=forced, excluded=self._excluded
            )
        self._runner.trusted.note(decision)
        self._attempts.append(
            Attempt(
                number=len(self._attempts) + 1,
                decision=decision,
                reports=self._runner.reports,
                clock=self._runner.clock,
                instruments=self._runner.instruments,
            )
        )

    async def _decided_again(
        self, forced: Strategy | None, leg: str, *suspects: frozenset[str]
    ) -> bool:
        """Decides without the first set of suspects that leaves engines enough; False if none."""
        before, excluded = self._attempt, self._excluded
        for suspected in suspects:
            self._excluded = excluded | suspected
            try:
                await self._decide(forced)
            except KvplaneError as error:
                _log.info("turn %s is not retried: %s", self._turn.turn_id, error)
                continue
            before.end(RouteOutcome.CANCELLED)
            self._runner.instruments.retries.add(1, {"leg": leg})
            return True
        return False

    async def _hand_over(self) -> bytes | None:
        """Runs the prefill leg if there is to be one; what the decode leg is sent.

        Raises:
            LegRefused: The engine refused the leg.

        """
        body = self._turn.body
        if not body.one_sequence:
            self._skip_prefill("several_sequences")
            return None
        if body.asks_about_prompt:
            self._skip_prefill("asks_about_prompt")
            return self._decode_params(None)
        try:
            return self._decode_params(await self._prefill())
        except EngineFailed as failure:
            suspects = _suspects(self._attempt.decision, failure)
        if await self._decided_again(Strategy.RECOMPUTE, "prefill", *suspects):
            try:
                return self._decode_params(await self._prefill())
            except EngineFailed as failure:
                self._excluded |= _suspects(self._attempt.decision, failure)[0]
        return self._decode_params(None)

    async def _prefill(self) -> Params | None:
        leg, report = self._attempt.decision.prefill, self._attempt.prefill
        if leg is None or report is None:
            return None
        return await run_prefill(self._runner, self._turn, self._attempt, leg, report)

    def _decode_params(self, handed_over: Params | None) -> bytes | None:
        """With nothing handed over, for an engine that computes what it lacks of the prompt."""
        own = self._attempt.decision.decode.kv_transfer_params
        if handed_over is None and not own:
            return None
        return merged(_LOCAL_ONLY if handed_over is None else handed_over, own)

    def _skip_prefill(self, why: str) -> None:
        self._runner.instruments.not_disaggregated.add(1, {"why": why})
        if self._attempt.prefill is not None:
            self._attempt.prefill.end(RouteOutcome.CANCELLED)


def _suspects(decision: Decision, failure: EngineFailed) -> Sequence[frozenset[str]]:
    """What to decide without after a prefill leg failed: sets of engines, the best first."""
    prefill = frozenset({decision.prefill.engine} if decision.prefill is not None else ())
    if decision.strategy is not Strategy.PULL:
        return [prefill]
    if failure.answered and decision.decode.fixed_retention is not None:
        # The stock connector answers with a 5xx where a read fails; its engine can compute.
        return [frozenset(), prefill]
    if not failure.timed_out:
        return [prefill]
    # As a rule the engine that decodes is the one that holds the blocks.
    owner = frozenset({decision.decode.engine})
    return [prefill | owner, owner, frozenset()]


def _without_retry(failure: DecodeFailed) -> web.StreamResponse:
    if isinstance(failure.answer, OpenAIError):
        raise failure.answer from failure
    return failure.answer
