"""Runs the decode leg of a turn, and answers the client with what the engine sends."""

import asyncio
import logging

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from kvplane_services.gateway import failures, headers
from kvplane_services.gateway.engine_answers import (
    EngineAnswer,
    Verdict,
    merged,
    streams,
    verdict_of,
)
from kvplane_services.gateway.engine_client import EngineFailed
from kvplane_services.gateway.history import continued_digest
from kvplane_services.gateway.leg_runner import LegRefused, LegRunner
from kvplane_services.gateway.openai_errors import OpenAIError
from kvplane_services.gateway.params_eraser import ParamsEraser
from kvplane_services.gateway.stream_relay import ClientGone, StreamRelay
from kvplane_services.gateway.turn import Attempt, Turn
from kvplane_services.router.model import KeptTurn, LegKind, RouteOutcome

_log = logging.getLogger(__name__)

# Seconds that the end of an answer waits for a router that is slow to take the leg's report.
_REPORT_WAIT = 0.05


class DecodeFailed(Exception):
    """The leg failed with nothing sent to the client; `answer` is what it gets without a retry."""

    def __init__(self, answer: OpenAIError | web.Response, *, retry: bool) -> None:
        super().__init__(str(answer))
        self.answer = answer
        self.retry = retry


class DecodeLeg:
    """One decode leg.

    Args:
        runner: Collaborators.
        request: The client's, to be answered.
        turn: What the client asked for.
        attempt: The decision, and where the leg is reported.

    """

    def __init__(
        self, *, runner: LegRunner, request: web.Request, turn: Turn, attempt: Attempt
    ) -> None:
        self._runner = runner
        self._request = request
        self._turn = turn
        self._decision = attempt.decision
        self._attempt = attempt
        self._report = attempt.decode
        self.outcome = RouteOutcome.FAILED

    async def run(self, params: bytes | None) -> web.StreamResponse:
        """Answers the client.

        Args:
            params: The leg's `kv_transfer_params`, if it is to have any.

        Raises:
            DecodeFailed: Nothing was sent to the client. Reported.
            LegRefused: The engine refused. Reported.

        """
        leg, config = self._decision.decode, self._runner.config
        self._report.start()
        client = self._turn.body
        body = await self._runner.work.run(lambda: client.decode_leg(params), size=len(client.raw))
        silence = config.stream_idle_timeout if self._turn.wants_stream else config.answer_timeout
        sent = self._runner.request(
            self._turn,
            self._attempt,
            leg,
            kind=LegKind.DECODE,
            body=body,
            silence=silence,
        )
        try:
            with self._runner.telemetry.span("decode", {"engine": leg.engine}):
                async with self._runner.engines.send(sent) as response:
                    if streams(response) and verdict_of(response) is Verdict.ANSWERED:
                        return await self._stream(response)
                    return await self._whole(response)
        except EngineFailed as failure:
            self._report.end(RouteOutcome.FAILED)
            _log.warning(
                "decode leg of turn %s failed: %s %s",
                self._turn.turn_id,
                leg.engine,
                failure.message,
            )
            # A client that waits for a whole answer has waited long enough.
            retry = self._turn.wants_stream or not failure.timed_out
            raise DecodeFailed(failures.no_answer(failure), retry=retry) from failure

    async def _whole(self, response: aiohttp.ClientResponse) -> web.Response:
        body = await self._read(response)
        verdict = verdict_of(response)
        if verdict is Verdict.REFUSED:
            self._report.end(RouteOutcome.REFUSED)
            raise LegRefused(failures.passed_on(response, body))
        if verdict is Verdict.FAILED:
            self._report.end(RouteOutcome.FAILED)
            raise DecodeFailed(failures.server_error(response, body), retry=True)
        try:
            answer = EngineAnswer.parse(body)
        except ValueError as error:
            self._report.end(RouteOutcome.FAILED)
            raise DecodeFailed(failures.broken("is not complete"), retry=False) from error
        self._runner.count_tokens(LegKind.DECODE, answer)
        await self._succeeded(answer, await self._kept(answer, body))
        return web.Response(
            status=response.status,
            body=ParamsEraser().feed(body),
            headers=self._answer_headers(response),
        )

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        pieces: list[bytes] = []
        try:
            while piece := await response.content.readany():
                self._report.note_first_byte()
                pieces.append(piece)
        except (aiohttp.ClientError, TimeoutError) as error:
            if not pieces:
                raise
            self._report.end(RouteOutcome.FAILED)
            raise DecodeFailed(failures.broken("broke off"), retry=False) from error
        return b"".join(pieces)

    async def _stream(self, response: aiohttp.ClientResponse) -> web.StreamResponse:
        relay = StreamRelay(upstream=response)
        # The client hears nothing before the first byte, so that until then another engine can
        # take the turn.
        first = await relay.first_piece()
        self._report.note_first_byte()
        client = web.StreamResponse(status=response.status, headers=self._answer_headers(response))
        try:
            await self._prepare(client)
            broken = await relay.relay(first, client, on_done=self._succeeded)
            if broken:
                self._report.end(RouteOutcome.FAILED)
                client.force_close()
                await relay.say_broken(client, failures.broken(broken))
        except ClientGone:
            # Unless it left after the last event, when the leg is reported already.
            self._report.end(RouteOutcome.CANCELLED)
            if self.outcome is not RouteOutcome.SUCCEEDED:
                self.outcome = RouteOutcome.CANCELLED
        return client

    async def _prepare(self, client: web.StreamResponse) -> None:
        try:
            await client.prepare(self._request)
        except ConnectionError as error:
            raise ClientGone from error

    async def _kept(self, answer: EngineAnswer, body: bytes) -> KeptTurn | None:
        """What a stock engine's answer says of the blocks that stay, if it says anything."""
        fixed, client = self._decision.decode.fixed_retention, self._turn.body
        if fixed is None or answer.params is None:
            return None
        digest = b""
        if fixed.trust_history:
            size = len(client.raw) + len(body)
            digest = await self._runner.work.run(lambda: continued_digest(client, body), size=size)
        return KeptTurn(merged(answer.params), digest)

    def _count_kept(self, answer: EngineAnswer | None, kept: KeptTurn | None) -> None:
        if self._decision.decode.fixed_retention is not None:
            known = "leased" if kept else "untold" if answer else "streamed"
            self._runner.instruments.fixed_retentions.add(1, {"known": known})

    async def _succeeded(
        self, answer: EngineAnswer | None = None, kept: KeptTurn | None = None
    ) -> None:
        """Reports, and lets the report go first: a turn that overtakes it looks like a fork."""
        self._count_kept(answer, kept)
        told = answer or EngineAnswer()
        delivery = self._report.end(
            RouteOutcome.SUCCEEDED,
            prompt_tokens=told.prompt_tokens,
            cached_tokens=told.cached_tokens,
            output_tokens=told.output_tokens,
            kept=kept,
        )
        self.outcome = RouteOutcome.SUCCEEDED
        if delivery is not None:
            await asyncio.wait([delivery], timeout=_REPORT_WAIT)

    def _answer_headers(self, response: aiohttp.ClientResponse) -> CIMultiDict[str]:
        answer = headers.to_client(response.headers)
        if self._runner.config.response_headers:
            answer["x-kvplane-strategy"] = self._decision.strategy.value
            answer["x-kvplane-reason"] = self._decision.reason.value
            answer["x-kvplane-decision"] = self._decision.decision_id
            answer["x-kvplane-session"] = self._decision.session_key.name
            answer["x-kvplane-held-tokens"] = str(self._decision.held_tokens)
        return answer
