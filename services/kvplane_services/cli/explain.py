"""`kvplane explain`: what the router would do with a turn, and why."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvplane_services.cli.asking import (
    DEFAULT_PLANE,
    OutputOption,
    PlaneOption,
    RegistryOption,
    RouterOption,
    TlsCaOption,
    ask,
)
from kvplane_services.cli.output import Output, enum_text, print_fields, print_json, print_table
from kvplane_services.cli.sessions import resource_name

if TYPE_CHECKING:
    from kvplane.api.router.v1 import router_pb2
    from kvplane.client import Plane, SessionKey


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(explain)


def explain(
    *,
    model: Annotated[
        str, typer.Option(help="The model that the turn asks for; a resource name has it.")
    ] = "",
    session: Annotated[
        str,
        typer.Option(
            help="The session's resource name as listed, or its id together with --model; leave "
            "out for a client that names none."
        ),
    ] = "",
    tenant: Annotated[str, typer.Option(help="The caller's tenant.")] = "default",
    adapter: Annotated[str, typer.Option(help="The LoRA adapter, if any.")] = "",
    prompt_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens in the prompt; 0 if unknown.")
    ] = 0,
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    router: RouterOption = None,
    registry: RegistryOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how the next turn of a session would be routed, with every candidate and its score.

    Changes nothing: no turn is counted, no lease is claimed.
    """
    from kvplane.api.router.v1 import router_pb2
    from kvplane.api.session.v1 import session_pb2

    key = _key(session, tenant, model, adapter)
    subject = router_pb2.RouteSubject(
        session_key=session_pb2.SessionKey(**key._asdict()), prompt_tokens=prompt_tokens
    )

    async def work(target: "Plane") -> "tuple[router_pb2.ExplainRouteResponse, str]":
        answer = await target.router.explain(subject)
        return answer, await _unknown(target, key)

    answer, unknown = ask(work, plane=plane, tls_ca=tls_ca, router=router, registry=registry)
    if unknown:
        print(f"kvplane: {unknown}", file=sys.stderr)
    if output is Output.JSON:
        print_json(answer)
    else:
        _print(answer)


def _key(session: str, tenant: str, model: str, adapter: str) -> "SessionKey":
    from kvplane.client.names import SessionKey, parse_session_name

    if model:
        return SessionKey(tenant, model, adapter, session)
    if (name := resource_name(session)) is None:
        raise typer.BadParameter(
            "is needed, unless --session is a session's resource name", param_hint="--model"
        )
    try:
        return parse_session_name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--session") from error


async def _unknown(plane: "Plane", key: "SessionKey") -> str:
    """What of a named session the registry does not know; empty if all, or if none can be asked."""
    from kvplane.client import KvplaneClientError, NotFoundError

    if not key.session_id:
        return ""
    try:
        try:
            await plane.sessions.get(key)
        except NotFoundError:
            others = plane.sessions.list(tenant=key.tenant, page_size=1)
            if await anext(others, None) is None:
                return f"no session of the tenant {key.tenant!r} is known"
            return f"the session {key.name} is not known; others of its tenant are"
    except KvplaneClientError:
        return ""  # It explains a router; not every plane has its registry at the same place.
    return ""


def _print(answer: "router_pb2.ExplainRouteResponse") -> None:
    from kvplane.api.router.v1 import router_pb2

    if answer.failure:
        print(f"the turn would fail: {answer.failure}")
    else:
        decision = answer.decision
        reason = enum_text(router_pb2.DecisionReason, decision.reason)
        print_fields(
            [
                ("strategy", enum_text(router_pb2.Strategy, decision.strategy)),
                ("reason", f"{reason}: {decision.details}" if decision.details else reason),
                ("prefill", decision.prefill.engine),
                ("decode", decision.decode.engine),
                ("lease", decision.lease),
                ("held tokens", str(decision.held_tokens) if decision.lease else ""),
            ]
        )
    print()
    print_table(
        ("STRATEGY", "PREDICTED", "REJECTED BECAUSE"),
        (
            (
                enum_text(router_pb2.Strategy, one.strategy),
                f"{one.predicted_ms:.1f} ms" if one.HasField("predicted_ms") else "",
                one.rejection,
            )
            for one in answer.strategies
        ),
        empty="no strategies",
    )
    print()
    print_table(
        ("ENGINE", "LEG", "SCORE", "SCORES", "IN FLIGHT", "REJECTED BECAUSE"),
        (
            (
                one.engine,
                enum_text(router_pb2.LegKind, one.leg),
                f"{one.score:.3f}",
                " ".join(f"{name}={score:.2f}" for name, score in sorted(one.scores.items())),
                str(one.in_flight),
                one.rejection,
            )
            for one in answer.candidates
        ),
        empty="no engines",
    )
