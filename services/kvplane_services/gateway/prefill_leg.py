"""Runs the prefill leg of a turn: one token, and the parameters that hand over its blocks."""

import logging

import aiohttp

from kvplane_services.gateway import failures
from kvplane_services.gateway.config import GatewayConfig
from kvplane_services.gateway.engine_answers import EngineAnswer, Params, Verdict, verdict_of
from kvplane_services.gateway.engine_client import EngineFailed
from kvplane_services.gateway.leg_reports import OpenLeg
from kvplane_services.gateway.leg_runner import LegRefused, LegRunner
from kvplane_services.gateway.turn import Attempt, Turn
from kvplane_services.router.model import Leg, LegKind, RouteOutcome, Strategy

_log = logging.getLogger(__name__)


async def run_prefill(
    runner: LegRunner, turn: Turn, attempt: Attempt, leg: Leg, report: OpenLeg
) -> Params | None:
    """The `kv_transfer_params` of the answer; None if it has none, which is counted and logged.

    Raises:
        EngineFailed: The engine did not answer well. Reported.
        LegRefused: It refused. Reported.

    """
    report.start()
    client, keeps = turn.body, runner.config.prefill_keeps
    body = await runner.work.run(
        lambda: client.prefill_leg(leg.kv_transfer_params, keeps=keeps), size=len(client.raw)
    )
    request = runner.request(
        turn,
        attempt,
        leg,
        kind=LegKind.PREFILL,
        body=body,
        deadline=_deadline(runner.config, attempt.decision.strategy),
    )
    try:
        with runner.telemetry.span("prefill", {"engine": leg.engine}):
            async with runner.engines.send(request) as response:
                report.note_first_byte()
                told = await response.read()
        answer = _understood(response, told)
    except LegRefused:
        report.end(RouteOutcome.REFUSED)
        raise
    except EngineFailed as failure:
        report.end(RouteOutcome.FAILED)
        _log.warning(
            "prefill leg of turn %s failed: %s %s", turn.turn_id, leg.engine, failure.message
        )
        raise
    report.end(
        RouteOutcome.SUCCEEDED,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        output_tokens=answer.output_tokens,
    )
    runner.count_tokens(LegKind.PREFILL, answer)
    if answer.params is None:
        runner.instruments.without_params.add(1)
        _log.warning(
            "prefill leg of turn %s handed over nothing: the answer of %s has no "
            "kv_transfer_params; does it run with a kv_connector?",
            turn.turn_id,
            leg.engine,
        )
    return answer.params


def _deadline(config: GatewayConfig, strategy: Strategy) -> float:
    if strategy is Strategy.PULL:
        return min(config.pull_timeout, config.prefill_timeout)
    return config.prefill_timeout


def _understood(response: aiohttp.ClientResponse, body: bytes) -> EngineAnswer:
    verdict = verdict_of(response)
    if verdict is Verdict.REFUSED:
        raise LegRefused(failures.passed_on(response, body))
    if verdict is Verdict.FAILED:
        raise EngineFailed(f"answered with status {response.status}", answered=True)
    try:
        return EngineAnswer.parse(body)
    except ValueError as error:
        raise EngineFailed(str(error)) from error
