"""`kvplane sessions`: which conversation is where, and what is wished for its future."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvplane_services.cli.asking import (
    DEFAULT_PLANE,
    OutputOption,
    PlaneOption,
    RegistryOption,
    SpanOption,
    TlsCaOption,
    ask,
)
from kvplane_services.cli.output import (
    Output,
    duration_text,
    enum_text,
    print_fields,
    print_json,
    print_json_line,
    print_json_list,
    print_table,
    until_text,
)
from kvplane_services.clock import SystemClock

if TYPE_CHECKING:
    from kvplane.api.session.v1 import session_pb2
    from kvplane.client import Plane

SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="SESSION",
        help="Its resource name as listed, or its id alone together with --model.",
    ),
]
KeyTenant = Annotated[str, typer.Option("--tenant", help="With an id alone: its tenant.")]
KeyModel = Annotated[str, typer.Option("--model", help="With an id alone: its model.")]
KeyAdapter = Annotated[str, typer.Option("--adapter", help="With an id alone: its adapter.")]

_SEPARATORS = 3


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(no_args_is_help=True, help="Show sessions and hint at their future.")
    group.command("list")(list_sessions)
    for command in (get, touch, end, delete, watch):
        group.command()(command)
    app.add_typer(group, name="sessions")


def list_sessions(
    tenant: Annotated[str, typer.Option(help="Only sessions of this tenant.")] = "",
    model: Annotated[str, typer.Option(help="Only sessions of this model.")] = "",
    engine: Annotated[
        str, typer.Option(help="Only sessions whose live lease is on this engine.")
    ] = "",
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    registry: RegistryOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the sessions."""

    async def work(target: "Plane") -> "list[session_pb2.Session]":
        found = target.sessions.list(tenant=tenant, model=model, engine=engine)
        return [one async for one in found]

    found = ask(work, plane=plane, tls_ca=tls_ca, registry=registry)
    if output is Output.JSON:
        print_json_list("sessions", found)
    else:
        print_table(_COLUMNS, map(_row, found), empty="no sessions")


def get(
    session: SessionArgument,
    tenant: KeyTenant = "default",
    model: KeyModel = "",
    adapter: KeyAdapter = "",
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    registry: RegistryOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one session and its latest turns."""
    name = _name(session, tenant, model, adapter)
    _print(
        ask(lambda p: p.sessions.get(name), plane=plane, tls_ca=tls_ca, registry=registry), output
    )


def touch(
    session: SessionArgument,
    *,
    keep_for: SpanOption = None,
    tenant: KeyTenant = "default",
    model: KeyModel = "",
    adapter: KeyAdapter = "",
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    registry: RegistryOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say "I shall be back": keep a session's blocks for a while."""
    name = _name(session, tenant, model, adapter)
    answer = ask(
        lambda p: p.sessions.touch(name, keep_for=keep_for or 0.0),
        plane=plane,
        tls_ca=tls_ca,
        registry=registry,
    )
    if output is Output.JSON:
        print_json(answer)
    elif answer.keep_for.ToNanoseconds():
        print(f"kept for {duration_text(answer.keep_for)}: {name}")
    else:
        print(f"nothing to keep, no lease is live: {name}")


def end(
    session: SessionArgument,
    tenant: KeyTenant = "default",
    model: KeyModel = "",
    adapter: KeyAdapter = "",
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    registry: RegistryOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say "I am done": release a session's lease."""
    name = _name(session, tenant, model, adapter)
    _print(
        ask(lambda p: p.sessions.end(name), plane=plane, tls_ca=tls_ca, registry=registry), output
    )


def delete(
    session: SessionArgument,
    tenant: KeyTenant = "default",
    model: KeyModel = "",
    adapter: KeyAdapter = "",
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    registry: RegistryOption = None,
) -> None:
    """Forget a session and release its lease. Deleting one that is gone succeeds."""
    name = _name(session, tenant, model, adapter)
    ask(lambda p: p.sessions.delete(name), plane=plane, tls_ca=tls_ca, registry=registry)
    print(f"deleted {name}")


def watch(
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    registry: RegistryOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the sessions, then every change, until interrupted."""

    async def work(target: "Plane") -> None:
        # A watch waits for a plane that is away; a first call says that it is.
        await anext(target.sessions.list(page_size=1), None)
        async for event in target.sessions.watch():
            _print_event(event, output)

    ask(work, plane=plane, tls_ca=tls_ca, registry=registry)


def resource_name(session: str) -> str | None:
    """The resource name that was given, with or without `sessions/`; None if it is none."""
    if session.startswith("sessions/"):
        return session
    return f"sessions/{session}" if session.count(":") == _SEPARATORS else None


def _name(session: str, tenant: str, model: str, adapter: str) -> str:
    from kvplane.client.names import session_name

    if model:
        return session_name(tenant, model, adapter, session)
    if (name := resource_name(session)) is not None:
        return name
    raise typer.BadParameter(
        f"{session!r} is not a session's resource name; give --model (and --tenant, --adapter) "
        "to name a session by its id, or copy its name from `kvplane sessions list`"
    )


_COLUMNS = ("NAME", "STATE", "ENGINE", "LEASE", "TURNS", "TOKENS", "UPDATED")


def _row(session: "session_pb2.Session") -> tuple[str, ...]:
    from kvplane.api.session.v1 import session_pb2

    return (
        session.name,
        enum_text(session_pb2.Session.State, session.state),
        session.engine,
        session.lease,
        str(session.turn_count),
        str(session.turns[-1].tokens) if session.turns else "",
        until_text(session.update_time, clock=SystemClock()),
    )


def _print(session: "session_pb2.Session", output: Output) -> None:
    if output is Output.JSON:
        print_json(session)
        return
    fields = [(name.lower(), value) for name, value in zip(_COLUMNS, _row(session), strict=True)]
    wished = session.hints.keep_for
    fields += [
        ("keep for", duration_text(wished) if wished.ToNanoseconds() else ""),
        ("final turn", "yes" if session.hints.final_turn else ""),
        ("created", until_text(session.create_time, clock=SystemClock())),
        ("forgotten", until_text(session.expire_time, clock=SystemClock())),
    ]
    print_fields(fields)
    if session.turns:
        print()
        print_table(
            ("FINISHED", "TOKENS", "ENGINE", "LEASE", "ENDED", "DECISION"),
            (
                (
                    until_text(turn.finish_time, clock=SystemClock()),
                    str(turn.tokens),
                    turn.engine,
                    turn.lease,
                    turn.end_reason.lower(),
                    turn.decision_id,
                )
                for turn in session.turns
            ),
            empty="",
        )


def _print_event(event: object, output: Output) -> None:
    from kvplane.api.session.v1 import session_pb2
    from kvplane.client import Removed, Reset, Synced, Upserted

    match event:
        case Upserted(value=session_pb2.Session() as session, revision=revision):
            message = session_pb2.WatchSessionsResponse(revision=revision, upserted=session)
            state = enum_text(session_pb2.Session.State, session.state)
            turns = "1 turn" if session.turn_count == 1 else f"{session.turn_count} turns"
            line = f"{session.name}  {state}  {session.engine or '-'}  {turns}"
        case Removed(name=name, revision=revision):
            message = session_pb2.WatchSessionsResponse(revision=revision, removed_name=name)
            line = f"{name}  removed"
        case Synced(revision=revision):
            if output is Output.JSON:
                print_json_line(session_pb2.WatchSessionsResponse(revision=revision, synced=True))
            return
        case Reset():
            print("kvplane: the watch starts over", file=sys.stderr)
            return
        case _:
            return
    if output is Output.JSON:
        print_json_line(message)
    else:
        print(line, flush=True)
