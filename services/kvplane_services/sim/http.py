"""The simulated engine's HTTP server: vLLM's surface, and the faults that it shows on request."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from kvplane_services.clock import Clock
from kvplane_services.errors import InvalidRequest
from kvplane_services.sim.answers import Answer, models, usage
from kvplane_services.sim.counters import Counters
from kvplane_services.sim.faults import FaultKind, FaultSet, parse_faults
from kvplane_services.sim.openai import (
    BadRequest,
    ChatBody,
    CompletionBody,
    Parsed,
    parse,
    require_json,
)
from kvplane_services.sim.pace import Pace
from kvplane_services.sim.request import FinishReason, Output, Request
from kvplane_services.sim.retentions import RetentionTable
from kvplane_services.sim.scheduler import Scheduler
from kvplane_services.sim.tokenizer import decode
from kvplane_services.sim.writer import FaultyWriter

_MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is served under which limit."""

    name: str
    max_model_len: int


class HttpServer:
    """Serves one scheduler.

    Args:
        model: What is served.
        scheduler: Runs the requests.
        retentions: For /sim/retentions.
        counters: For /metrics.
        faults: What goes wrong, on request.
        faults_changed: Called after they were changed.
        clock: Time.
        pace: What faults do to it.
        die: Ends the process without a word, for the fault of that name.

    """

    def __init__(
        self,
        *,
        model: ServedModel,
        scheduler: Scheduler,
        retentions: RetentionTable,
        counters: Counters,
        faults: FaultSet,
        faults_changed: Callable[[], None],
        clock: Clock,
        pace: Pace,
        die: Callable[[], None],
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self._retentions = retentions
        self._counters = counters
        self._faults = faults
        self._faults_changed = faults_changed
        self._clock = clock
        self._pace = pace
        self._die = die
        self._started = int(clock.wall().timestamp())

    def application(self) -> web.Application:
        """The HTTP application."""
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        router = application.router
        router.add_get("/health", self._health)
        router.add_get("/metrics", self._metrics)
        router.add_get("/v1/models", self._models)
        router.add_post("/v1/chat/completions", self._chat)
        router.add_post("/v1/completions", self._completion)
        router.add_get("/sim/retentions", self._list_retentions)
        router.add_get("/sim/faults", self._list_faults)
        router.add_post("/sim/faults", self._set_faults)
        return application

    async def _health(self, _: web.Request) -> web.Response:
        await self._pace.thawed(self._clock)
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        await self._pace.thawed(self._clock)
        return web.Response(
            body=self._counters.exposition(), content_type="text/plain", charset="utf-8"
        )

    async def _models(self, _: web.Request) -> web.Response:
        await self._pace.thawed(self._clock)
        return web.json_response(
            models(self._model.name, max_model_len=self._model.max_model_len, created=self._started)
        )

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, ChatBody)

    async def _completion(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, CompletionBody)

    async def _list_retentions(self, _: web.Request) -> web.Response:
        """What is held for sessions, which is the truth that a plane must agree with."""
        held = [
            {
                "retention_id": one.retention_id,
                "session_id": one.mark.session_id,
                "lease": one.lease,
                "fencing_token": one.fencing_token,
                "releasing": one.release_reason is not None,
            }
            for one in self._retentions
            if one.mark is not None
        ]
        return web.json_response({"retentions": held})

    async def _list_faults(self, _: web.Request) -> web.Response:
        return web.json_response({"faults": self._faults.describe()})

    async def _set_faults(self, http: web.Request) -> web.Response:
        """Replaces all faults; from this machine only."""
        if http.remote not in ("127.0.0.1", "::1"):
            raise web.HTTPForbidden(text="faults are set from the engine's own machine only")
        try:
            faults = parse_faults(await http.json())
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"not JSON: {error}") from error
        except InvalidRequest as error:
            raise web.HTTPBadRequest(text=error.message) from error
        self._faults.replace(faults)
        self._faults_changed()
        return web.json_response({"faults": self._faults.describe()})

    async def _generate(
        self, http: web.Request, kind: type[ChatBody] | type[CompletionBody]
    ) -> web.StreamResponse:
        raw = await http.read()
        await self._pace.thawed(self._clock)
        refusal = self._faults.take(FaultKind.STATUS)
        if refusal is not None:
            return _refused(int(refusal.values["status"]), refusal.values["retry_after"])
        try:
            require_json(http.content_type)
            parsed = parse(
                raw, kind, model=self._model.name, max_model_len=self._model.max_model_len
            )
        except BadRequest as error:
            return web.json_response(error.body(), status=error.status)
        chat = kind is ChatBody
        base = http.headers.get("X-Request-Id") or uuid.uuid4().hex
        answer_id = f"{'chatcmpl' if chat else 'cmpl'}-{base}"
        request = Request(
            # vLLM's engine adds random characters, so that ids of clients cannot collide.
            request_id=f"{answer_id}{'' if chat else '-0'}-{uuid.uuid4().hex[:8]}",
            prompt=parsed.prompt,
            context=parsed.context,
            sampling=parsed.sampling,
            params=parsed.params,
        )
        answer = Answer(
            chat=chat,
            request_id=answer_id,
            model=parsed.model,
            created=int(self._clock.wall().timestamp()),
        )
        self._scheduler.add(request)
        try:
            if parsed.stream:
                return await self._stream(http, request, parsed, answer)
            return await self._whole(http, request, parsed, answer)
        finally:
            # Does nothing if the request is over; else its client is gone.
            self._scheduler.abort(request)

    async def _whole(
        self, http: web.Request, request: Request, parsed: Parsed, answer: Answer
    ) -> web.StreamResponse:
        while True:
            output = await request.outputs.get()
            if output.finish_reason is not None:
                break
        if output.finish_reason is FinishReason.ERROR:
            return _failed(output.error)
        no_params = self._faults.take(FaultKind.NO_PARAMS) is not None
        body = answer.whole(
            _shown(request, output),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            usage=_usage(request),
            params=None if no_params else output.params,
            token_ids=request.tokens[len(request.prompt) :] if parsed.token_ids else None,
            prompt_token_ids=request.prompt if parsed.token_ids else None,
        )
        encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        response = web.StreamResponse()
        response.content_type = "application/json"
        response.content_length = len(encoded)
        writer = await self._writer(http, response)
        await writer.write(encoded)
        return response

    async def _stream(
        self, http: web.Request, request: Request, parsed: Parsed, answer: Answer
    ) -> web.StreamResponse:
        output = await request.outputs.get()
        if output.finish_reason is FinishReason.ERROR:
            return _failed(output.error)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        writer = await self._writer(http, response)

        async def send(chunk: dict[str, Any]) -> None:
            if parsed.continuous_usage and chunk["choices"]:
                chunk["usage"] = _usage(request, details=False)
            data = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
            await writer.write(f"data: {data}\n\n".encode())

        opening = answer.opening(prompt_token_ids=request.prompt if parsed.token_ids else None)
        if opening is not None:
            await send(opening)
        held_back = max((len(stop) for stop in parsed.sampling.stop), default=1) - 1
        text, sent = "", 0
        token_ids: list[int] = []
        while True:
            if output.token is not None:
                text += decode([output.token])
                token_ids.append(output.token)
            if output.finish_reason is not None:
                break
            upto = len(text) - held_back
            if upto > sent or not held_back:
                chunk_ids, token_ids = token_ids, []
                await send(
                    answer.chunk(text[sent:upto], token_ids=chunk_ids if parsed.token_ids else None)
                )
                sent = upto
            output = await request.outputs.get()
        await send(
            answer.chunk(
                _shown(request, output)[sent:],
                finish_reason=output.finish_reason,
                stop_reason=output.stop_reason,
                token_ids=token_ids if parsed.token_ids else None,
            )
        )
        if parsed.include_usage:
            await send(answer.usage_chunk(_usage(request)))
        await writer.write(b"data: [DONE]\n\n")
        return response

    async def _writer(self, http: web.Request, response: web.StreamResponse) -> FaultyWriter:
        fault = self._faults.take(FaultKind.DIE, FaultKind.CUT, FaultKind.STALL)
        await response.prepare(http)
        return FaultyWriter(
            response, transport=http.transport, fault=fault, clock=self._clock, die=self._die
        )


def _usage(request: Request, *, details: bool = True) -> dict[str, Any]:
    return usage(
        prompt=len(request.prompt),
        completion=request.output_length,
        cached=request.cached_tokens if details else None,
    )


def _shown(request: Request, output: Output) -> str:
    """The reply without the stop string that ended it and what followed."""
    if output.stop_reason is None:
        return request.text
    return request.text[: request.text.index(output.stop_reason)]


def _failed(error: str) -> web.Response:
    body = BadRequest(error or "internal error", status=500, kind="InternalServerError").body()
    return web.json_response(body, status=500)


def _refused(status: int, retry_after: float) -> web.Response:
    body = BadRequest("a fault was asked for", status=status, kind="SimulatedFault").body()
    headers = {"Retry-After": str(int(retry_after))} if retry_after else None
    return web.json_response(body, status=status, headers=headers)
