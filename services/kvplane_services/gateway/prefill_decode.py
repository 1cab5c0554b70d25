"""Serves one turn: decide, run the prefill leg if there is one, run the decode leg, pass it on.

What fails, and what follows:

- The router cannot decide: the client gets its error.
- An engine refuses a leg (4xx): the client gets the engine's answer. Nothing is retried.
- The prefill leg fails: decided once more without that engine, as RECOMPUTE. Failing that, or
  if no other engine can take it, the decode engine computes the prompt itself.
- The decode leg fails before its first byte: decided once more without that engine. What the
  prefill leg handed over is not sent a second time, because the engine that failed may have
  read it, and blocks that were read may be gone.
- The decode leg breaks after its first byte: a stream ends with an error event and without
  [DONE]; any other answer becomes a 502. Nothing is retried.
- The client leaves: the running leg's connection is closed at once, by which its engine aborts.
"""

import asyncio
import logging
import uuid

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict

from kvplane.transfer_params import LOCAL_ONLY
from kvplane_services.clock import Clock
from kvplane_services.errors import KvplaneError
from kvplane_services.gateway import headers
from kvplane_services.gateway.config import GatewayConfig
from kvplane_services.gateway.engine_answers import EngineAnswer, is_openai_error, merged, streams
from kvplane_services.gateway.engine_client import EngineClient, EngineFailed, LegRequest
from kvplane_services.gateway.instruments import Instruments
from kvplane_services.gateway.leg_reports import LegReports
from kvplane_services.gateway.openai_errors import OpenAIError
from kvplane_services.gateway.params_eraser import ParamsEraser
from kvplane_services.gateway.stream_relay import ClientGone, StreamRelay
from kvplane_services.gateway.turn import Attempt, Turn
from kvplane_services.router.model import Decision, Leg, RouteOutcome, Strategy
from kvplane_services.router.ports import Router
from kvplane_services.telemetry import Telemetry

_log = logging.getLogger(__name__)

_LOCAL_ONLY = msgspec.json.encode(LOCAL_ONLY)


class _Refused(Exception):
    """An engine refused a leg; `answer` is for the client."""

    def __init__(self, answer: web.Response) -> None:
        super().__init__(answer.status)
        self.answer = answer


class _DecodeFailed(Exception):
    """The decode leg failed; `answer` is for the client if it is not to be retried."""

    def __init__(self, answer: OpenAIError | web.Response, *, retry: bool) -> None:
        super().__init__(str(answer))
        self.answer = answer
        self.retry = retry


class PrefillDecode:
    """Serves turns.

    Args:
        router: Decides them.
        engines: Carries legs to engines.
        reports: Takes the legs' reports.
        config: The gateway's.
        clock: Tells durations.
        telemetry: Spans.
        instruments: Counts and measures.

    """

    def __init__(
        self,
        *,
        router: Router,
        engines: EngineClient,
        reports: LegReports,
        config: GatewayConfig,
        clock: Clock,
        telemetry: Telemetry,
        instruments: Instruments,
    ) -> None:
        self.router = router
        self.engines = engines
        self.reports = reports
        self.config = config
        self.clock = clock
        self.telemetry = telemetry
        self.instruments = instruments

    async def serve(self, request: web.Request, turn: Turn) -> web.StreamResponse:
        """Answers the client.

        Raises:
            OpenAIError: The turn failed, and nothing was sent to the client yet.
            KvplaneError: The router could not decide.

        """
        run = _Run(self, request, turn)
        with self.telemetry.continued("turn", turn.headers):
            try:
                return await run.answer()
            except asyncio.CancelledError:
                run.outcome = RouteOutcome.CANCELLED
                raise
            finally:
                run.close()


class _Run:
    """A turn on its way."""

    def __init__(self, shared: PrefillDecode, request: web.Request, turn: Turn) -> None:
        self._shared = shared
        self._request = request
        self._turn = turn
        self._attempts: list[Attempt] = []
        self._excluded: set[str] = set()
        # How the turn went, for what is still open at its end.
        self.outcome = RouteOutcome.FAILED

    @property
    def _attempt(self) -> Attempt:
        return self._attempts[-1]

    @property
    def _decision(self) -> Decision:
        return self._attempt.decision

    async def answer(self) -> web.StreamResponse:
        await self._decide(self._turn.forced)
        try:
            try:
                return await self._decode(await self._hand_over())
            except _DecodeFailed as failure:
                self._excluded.add(self._decision.decode.engine)
                if not failure.retry or not await self._decided_again(None, "decode"):
                    return self._failed(failure)
            try:
                return await self._decode(await self._hand_over())
            except _DecodeFailed as failure:
                return self._failed(failure)
        except _Refused as refusal:
            self.outcome = RouteOutcome.REFUSED
            self._attempt.end(RouteOutcome.CANCELLED)
            return refusal.answer

    def close(self) -> None:
        """Reports what is still open, and counts the turn."""
        for attempt in self._attempts:
            attempt.end(self.outcome)
        if self._attempts:
            self._shared.instruments.turns.add(
                1,
                {
                    "strategy": self._decision.strategy.value,
                    "reason": self._decision.reason.value,
                    "outcome": self.outcome.value,
                },
            )

    def _failed(self, failure: _DecodeFailed) -> web.StreamResponse:
        if isinstance(failure.answer, OpenAIError):
            raise failure.answer from failure
        return failure.answer

    # -- Deciding -----------------------------------------------------------------------------

    async def _decide(self, forced: Strategy | None) -> None:
        with self._shared.telemetry.span("decision"):
            decision = await self._shared.router.decide(
                self._turn.subject,
                forced=forced,
                request_id=str(uuid.uuid4()),
                excluded=frozenset(self._excluded),
            )
        self._attempts.append(
            Attempt(
                number=len(self._attempts) + 1,
                decision=decision,
                reports=self._shared.reports,
                clock=self._shared.clock,
                instruments=self._shared.instruments,
            )
        )

    async def _decided_again(self, forced: Strategy | None, leg: str) -> bool:
        """Decides without the engines that failed; False if that is not possible."""
        before = self._attempt
        try:
            await self._decide(forced)
        except KvplaneError as error:
            _log.info("turn %s is not retried: %s", self._turn.turn_id, error)
            return False
        before.end(RouteOutcome.CANCELLED)
        self._shared.instruments.retries.add(1, {"leg": leg})
        return True

    # -- Prefill ------------------------------------------------------------------------------

    async def _hand_over(self) -> bytes | None:
        """Runs the prefill leg if there is to be one; what the decode leg is sent.

        Raises:
            _Refused: The engine refused the leg.

        """
        body = self._turn.body
        if not body.one_sequence or body.asks_about_prompt:
            why = "asks_about_prompt" if body.one_sequence else "several_sequences"
            self._shared.instruments.not_disaggregated.add(1, {"why": why})
            if self._attempt.prefill is not None:
                self._attempt.prefill.end(RouteOutcome.CANCELLED)
            return self._alone() if body.one_sequence else None
        if self._decision.prefill is None:
            return self._alone()
        try:
            return await self._prefill(self._decision.prefill)
        except EngineFailed as failure:
            self._note_prefill_failure(self._decision.prefill, failure)
        if await self._decided_again(Strategy.RECOMPUTE, "prefill"):
            leg = self._decision.prefill
            if leg is not None:
                try:
                    return await self._prefill(leg)
                except EngineFailed as failure:
                    self._note_prefill_failure(leg, failure)
        return self._alone()

    def _alone(self) -> bytes:
        """For a decode engine that computes what it lacks of the prompt, and keeps the blocks."""
        return merged(_LOCAL_ONLY, self._decision.decode.kv_transfer_params)

    def _note_prefill_failure(self, leg: Leg, failure: EngineFailed) -> None:
        if self._attempt.prefill is not None:
            self._attempt.prefill.end(RouteOutcome.FAILED)
        self._excluded.add(leg.engine)
        _log.warning(
            "prefill leg of turn %s failed: %s %s",
            self._turn.turn_id,
            leg.engine,
            failure.message,
        )

    async def _prefill(self, leg: Leg) -> bytes:
        """What the decode leg is sent after a prefill leg.

        Raises:
            EngineFailed: The engine did not answer well.
            _Refused: It refused.

        """
        shared, report = self._shared, self._attempt.prefill
        if report is None:
            raise RuntimeError("the decision has no prefill leg")
        report.start()
        sent = self._leg_request(
            leg,
            "prefill",
            self._turn.body.prefill_leg(leg.kv_transfer_params, keeps=shared.config.prefill_keeps),
            deadline=shared.config.prefill_timeout,
        )
        with shared.telemetry.span("prefill", {"engine": leg.engine}):
            async with shared.engines.send(sent) as response:
                report.note_first_byte()
                body = await response.read()
        if 400 <= response.status < 500:
            report.end(RouteOutcome.REFUSED)
            raise _Refused(_passed_on(response, body))
        if response.status != 200:
            raise EngineFailed(f"answered with status {response.status}")
        try:
            answer = EngineAnswer.parse(body)
        except ValueError as error:
            raise EngineFailed(str(error)) from error
        report.end(
            RouteOutcome.SUCCEEDED,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
        )
        self._count_tokens("prefill", answer)
        if answer.params is None:
            shared.instruments.without_params.add(1)
            _log.warning(
                "prefill leg of turn %s handed over nothing: the answer of %s has no "
                "kv_transfer_params; does it run with a kv_connector?",
                self._turn.turn_id,
                leg.engine,
            )
            return self._alone()
        return merged(answer.params, self._decision.decode.kv_transfer_params)

    # -- Decode -------------------------------------------------------------------------------

    async def _decode(self, params: bytes | None) -> web.StreamResponse:
        """Runs the decode leg and answers the client.

        Raises:
            _DecodeFailed: The leg failed, and nothing was sent to the client.
            _Refused: The engine refused.

        """
        shared, leg, report = self._shared, self._decision.decode, self._attempt.decode
        config = shared.config
        report.start()
        sent = self._leg_request(
            leg,
            "decode",
            self._turn.body.decode_leg(params),
            silence=config.stream_idle_timeout
            if self._turn.wants_stream
            else config.answer_timeout,
        )
        with shared.telemetry.span("decode", {"engine": leg.engine}):
            try:
                async with shared.engines.send(sent) as response:
                    if streams(response) and response.status == 200:
                        return await self._stream(response)
                    return await self._whole(response)
            except EngineFailed as failure:
                report.end(RouteOutcome.FAILED)
                _log.warning(
                    "decode leg of turn %s failed: %s %s",
                    self._turn.turn_id,
                    leg.engine,
                    failure.message,
                )
                # A client that waits for a whole answer has waited long enough.
                retry = self._turn.wants_stream or not failure.timed_out
                raise _DecodeFailed(_no_answer(failure), retry=retry) from failure

    async def _whole(self, response: aiohttp.ClientResponse) -> web.Response:
        report = self._attempt.decode
        pieces: list[bytes] = []
        try:
            while piece := await response.content.readany():
                report.note_first_byte()
                pieces.append(piece)
        except (aiohttp.ClientError, TimeoutError) as error:
            if not pieces:
                raise
            report.end(RouteOutcome.FAILED)
            raise _DecodeFailed(_broken("broke off"), retry=False) from error
        body = b"".join(pieces)
        if 400 <= response.status < 500:
            report.end(RouteOutcome.REFUSED)
            raise _Refused(_passed_on(response, body))
        if response.status >= 500 or response.status < 200 or 300 <= response.status < 400:
            report.end(RouteOutcome.FAILED)
            raise _DecodeFailed(_server_error(response, body), retry=True)
        try:
            answer = EngineAnswer.parse(body)
        except ValueError as error:
            report.end(RouteOutcome.FAILED)
            raise _DecodeFailed(_broken("is not complete"), retry=False) from error
        report.end(
            RouteOutcome.SUCCEEDED,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
        )
        self._count_tokens("decode", answer)
        self.outcome = RouteOutcome.SUCCEEDED
        return web.Response(
            status=response.status,
            body=ParamsEraser().feed(body),
            headers=self._answer_headers(response),
        )

    async def _stream(self, response: aiohttp.ClientResponse) -> web.StreamResponse:
        report = self._attempt.decode
        relay = StreamRelay(upstream=response)
        # The client hears nothing before the first byte, so that until then another engine can
        # take the turn.
        first = await relay.first_piece()
        report.note_first_byte()
        client = web.StreamResponse(
            status=response.status, headers=self._answer_headers(response)
        )
        try:
            await self._prepare(client)
            broken = await relay.relay(first, client)
            if broken:
                report.end(RouteOutcome.FAILED)
                client.force_close()
                await relay.say_broken(client, _broken(broken))
            else:
                report.end(RouteOutcome.SUCCEEDED)
                self.outcome = RouteOutcome.SUCCEEDED
        except ClientGone:
            self.outcome = RouteOutcome.CANCELLED
            report.end(RouteOutcome.CANCELLED)
        return client

    async def _prepare(self, client: web.StreamResponse) -> None:
        try:
            await client.prepare(self._request)
        except ConnectionError as error:
            raise ClientGone from error

    # -- Both legs ----------------------------------------------------------------------------

    def _leg_request(
        self,
        leg: Leg,
        kind: str,
        body: bytes,
        *,
        silence: float | None = None,
        deadline: float | None = None,
    ) -> LegRequest:
        tenant_header = self._shared.config.tenant_header
        return LegRequest(
            url=leg.endpoint.rstrip("/") + self._turn.path,
            headers=headers.to_engine(
                self._turn.headers,
                request_id=f"{self._turn.turn_id}-{self._attempt.number}-{kind}",
                data_parallel_rank=leg.data_parallel_rank,
                trace=self._shared.telemetry.trace_headers(),
                without=(tenant_header.lower(),) if tenant_header else (),
            ),
            body=body,
            silence=silence,
            deadline=deadline,
        )

    def _answer_headers(self, response: aiohttp.ClientResponse) -> CIMultiDict[str]:
        answer = headers.to_client(response.headers)
        if self._shared.config.response_headers:
            decision = self._decision
            answer["x-kvplane-strategy"] = decision.strategy.value
            answer["x-kvplane-reason"] = decision.reason.value
            answer["x-kvplane-decision"] = decision.decision_id
            answer["x-kvplane-session"] = decision.session_key.name
            answer["x-kvplane-held-tokens"] = str(decision.held_tokens)
        return answer

    def _count_tokens(self, leg: str, answer: EngineAnswer) -> None:
        for kind, tokens in (
            ("prompt", answer.prompt_tokens),
            ("cached", answer.cached_tokens),
            ("output", answer.output_tokens),
        ):
            if tokens:
                self._shared.instruments.tokens.add(tokens, {"leg": leg, "kind": kind})


def _passed_on(response: aiohttp.ClientResponse, body: bytes) -> web.Response:
    """An engine's error as it is, or one that says as much if it has no body."""
    if not body:
        return OpenAIError(
            response.status,
            f"the engine refused the request with status {response.status}",
            code="engine_refused",
        ).response()
    return web.Response(
        status=response.status, body=body, headers=headers.to_client(response.headers)
    )


def _server_error(response: aiohttp.ClientResponse, body: bytes) -> OpenAIError | web.Response:
    if response.status >= 500 and is_openai_error(body):
        return _passed_on(response, body)
    return OpenAIError(
        502,
        f"the engine failed with status {response.status}; send the request again",
        code="engine_failed",
    )


def _no_answer(failure: EngineFailed) -> OpenAIError:
    if failure.timed_out:
        return OpenAIError(
            504, "the engine did not answer in time; send the request again", code="engine_timeout"
        )
    return OpenAIError(
        502, "the engine could not be reached or broke off; send the request again",
        code="engine_failed",
    )


def _broken(how: str) -> OpenAIError:
    return OpenAIError(
        502, f"the engine's answer {how}; send the request again", code="answer_incomplete"
    )
