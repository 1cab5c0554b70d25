"""The gateway's HTTP surface. Wiring lives here; what a turn does is in prefill_decode.py."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Final

import msgspec
from aiohttp import web

from kvplane_services.clock import Clock
from kvplane_services.errors import KvplaneError
from kvplane_services.gateway.body import ClientBody
from kvplane_services.gateway.body_work import BodyWork
from kvplane_services.gateway.config import GatewayConfig
from kvplane_services.gateway.decisions import Decisions
from kvplane_services.gateway.encoded_body import EncodedBody
from kvplane_services.gateway.engine_client import EngineClient
from kvplane_services.gateway.history import TrustedModels, history_digest
from kvplane_services.gateway.http_protocol import (
    expectation,
    refuse_large_headers,
    without_server_header,
)
from kvplane_services.gateway.instruments import Instruments
from kvplane_services.gateway.leg_reports import LegReports
from kvplane_services.gateway.leg_runner import LegRunner
from kvplane_services.gateway.openai_errors import OpenAIError, from_domain
from kvplane_services.gateway.prefill_decode import PrefillDecode
from kvplane_services.gateway.session_naming import subject_of, tenant_of
from kvplane_services.gateway.turn import Turn
from kvplane_services.router.model import Strategy, Subject
from kvplane_services.router.ports import Router
from kvplane_services.telemetry import Telemetry

_log = logging.getLogger(__name__)

_STRATEGY_HEADER = "x-kvplane-strategy"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Readiness:
    """Whether the gateway should get turns. `stop` comes while it still takes them."""

    def __init__(self) -> None:
        self.stopping = False

    def stop(self) -> None:
        """From now on /readyz says no."""
        self.stopping = True


READINESS: Final = web.AppKey("readiness", Readiness)


def build_gateway(
    *, router: Router, settings: GatewayConfig, clock: Clock, telemetry: Telemetry
) -> web.Application:
    """Makes the application. Serve it with server.py: turns end with their clients only there.

    Args:
        router: Decides turns, in this process or in another.
        settings: Limits and switches.
        clock: Tells durations.
        telemetry: Metrics and traces; the caller closes it.

    """
    app = web.Application(middlewares=[_errors_in_openai_shape])
    app.on_response_prepare.append(without_server_header)
    app.on_response_prepare.append(_last_on_its_connection)
    instruments = Instruments.of(telemetry)
    engines = EngineClient(config=settings)
    work = BodyWork()
    reports = LegReports(router=router)
    decisions = Decisions(router=router, reports=reports)
    readiness = Readiness()
    trusted = TrustedModels()
    app[READINESS] = readiness

    async def collaborators(_: web.Application) -> AsyncIterator[None]:
        async with reports.running(), decisions.running(), engines, work:
            yield

    async def stop(_: web.Application) -> None:
        readiness.stop()

    app.cleanup_ctx.append(collaborators)
    app.on_shutdown.append(stop)
    turns = _Turns(
        config=settings,
        work=work,
        trusted=trusted,
        serve=PrefillDecode(
            runner=LegRunner(
                decisions=decisions,
                engines=engines,
                work=work,
                reports=reports,
                config=settings,
                clock=clock,
                telemetry=telemetry,
                instruments=instruments,
                trusted=trusted,
            )
        ),
    )
    about = _About(router=router, clock=clock, telemetry=telemetry, readiness=readiness)
    app.add_routes(
        [
            web.post("/v1/chat/completions", turns.chat, expect_handler=expectation),
            web.post("/v1/completions", turns.complete, expect_handler=expectation),
            web.get("/v1/models", about.models),
            web.get("/v1/models/{model:.+}", about.model),
            web.get("/health", about.health),
            web.get("/readyz", about.ready),
            web.get("/metrics", about.metrics),
        ]
    )
    return app


class _Turns:
    """The routes that serve turns."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        work: BodyWork,
        trusted: TrustedModels,
        serve: PrefillDecode,
    ) -> None:
        self._config = config
        self._work = work
        self._trusted = trusted
        self._serve = serve
        self._secret = config.tenant_secret.encode()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._turn(request, chat=True)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        return await self._turn(request, chat=False)

    async def _turn(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        _require_json(request)
        forced = self._forced(request)
        encoded = await EncodedBody.read(
            request,
            limit=self._config.max_body_bytes,
            idle_timeout=self._config.body_idle_timeout,
        )
        turn = await self._work.run(
            lambda: self._understood(request, encoded, chat=chat, forced=forced),
            size=encoded.work,
        )
        return await self._serve.serve(request, turn)

    def _understood(
        self, request: web.Request, encoded: EncodedBody, *, chat: bool, forced: Strategy | None
    ) -> Turn:
        body = ClientBody.parse(encoded.plain(limit=self._config.max_body_bytes), chat=chat)
        tenant = tenant_of(
            request.headers, tenant_header=self._config.tenant_header, secret=self._secret
        )
        return Turn(
            turn_id=Turn.new_id(),
            path=request.path,
            headers=request.headers,
            body=body,
            subject=self._subject(request, body, tenant=tenant),
            forced=forced,
        )

    def _subject(self, request: web.Request, body: ClientBody, *, tenant: str) -> Subject:
        subject = subject_of(request.headers, body, tenant=tenant)
        if body.model not in self._trusted:
            return subject
        return replace(subject, history_digest=history_digest(body))

    def _forced(self, request: web.Request) -> Strategy | None:
        if not self._config.allow_strategy_header:
            return None
        # More than one of them is none that there is.
        value = ", ".join(request.headers.getall(_STRATEGY_HEADER, [])).strip().lower()
        if value in ("", "auto"):
            return None
        try:
            return Strategy(value)
        except ValueError as error:
            known = ", ".join(strategy.value for strategy in Strategy)
            raise OpenAIError(
                400,
                f"the header {_STRATEGY_HEADER} must be one of {known}, auto",
                code="invalid_value",
                param=_STRATEGY_HEADER,
            ) from error


class _About:
    """The routes that tell about the gateway."""

    def __init__(
        self, *, router: Router, clock: Clock, telemetry: Telemetry, readiness: Readiness
    ) -> None:
        self._router = router
        self._telemetry = telemetry
        self._readiness = readiness
        # OpenAI wants to know since when a model exists; since when it is served here is as
        # close as anybody knows.
        self._created = int(clock.wall().timestamp())

    async def models(self, _: web.Request) -> web.Response:
        cards = [self._card(model) for model in await self._router.models()]
        return _json({"object": "list", "data": cards})

    async def model(self, request: web.Request) -> web.Response:
        model = request.match_info["model"]
        if model not in await self._router.models():
            raise OpenAIError(
                404,
                f"no engine serves the model {model!r}: GET /v1/models lists those there are",
                code="model_not_found",
                param="model",
            )
        return _json(self._card(model))

    async def health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def ready(self, _: web.Request) -> web.Response:
        if self._readiness.stopping:
            raise _not_ready("the gateway is stopping")
        if not await self._router.models():
            raise _not_ready("no engine serves a model yet")
        return _json({"status": "ready"})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._telemetry.render(),
            headers={"Content-Type": self._telemetry.METRICS_CONTENT_TYPE},
        )

    def _card(self, model: str) -> dict[str, str | int]:
        return {"id": model, "object": "model", "created": self._created, "owned_by": "kvplane"}


async def _last_on_its_connection(request: web.Request, response: web.StreamResponse) -> None:
    """Takes clients' idle connections off a gateway that stops, before it has to cut them."""
    if request.app[READINESS].stopping:
        response.force_close()
        response.headers["Connection"] = "close"


@web.middleware
async def _errors_in_openai_shape(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        refuse_large_headers(request)
        return await handler(request)
    except OpenAIError as error:
        return error.response()
    except KvplaneError as error:
        return from_domain(error).response()
    except web.HTTPException as error:
        return _from_http(request, error).response()
    except Exception:  # noqa: BLE001 - the outermost frame
        # A bug. The log and the client get the same id, so that one leads to the other.
        incident = Turn.new_id()
        _log.exception("request failed, incident %s", incident)
        return OpenAIError(
            500, f"the gateway failed; its log has the incident {incident}", code="internal_error"
        ).response()


def _from_http(request: web.Request, error: web.HTTPException) -> OpenAIError:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return OpenAIError(
            405,
            f"{request.path} does not take {request.method}: use {allowed}",
            code="method_not_allowed",
        )
    if isinstance(error, web.HTTPNotFound):
        return OpenAIError(
            404,
            f"there is no {request.path} here: the gateway serves /v1/chat/completions, "
            "/v1/completions and /v1/models",
            code="unknown_url",
        )
    return OpenAIError(error.status, error.reason, code="http_error")


def _not_ready(why: str) -> OpenAIError:
    return OpenAIError(503, why, code="not_ready", retry_after=1.0)


def _require_json(request: web.Request) -> None:
    kind = request.content_type
    given = "Content-Type" in request.headers
    if given and kind != "application/json" and not kind.endswith("+json"):
        raise OpenAIError(
            415,
            f"the content type is {kind}: send JSON with 'Content-Type: application/json'",
            code="unsupported_media_type",
        )


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
