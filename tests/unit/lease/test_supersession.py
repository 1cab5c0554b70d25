"""How a session's newer lease takes the place of the older one."""

from dataclasses import replace

from kvplane_services.lease.model import EndReason, LeaseState
from kvplane_services.lease.reports import Directive, EngineReport
from tests.support.state_plane import StatePlane, by_retention
from tests.support.state_values import engine_of, full, held, key_of, retention_of


async def test_a_newer_turn_supersedes_the_older(plane: StatePlane) -> None:
    """The older lease is released once, as SUPERSEDED, and is over when the engine says so."""
    engine = await plane.register()
    older = await plane.held_lease(engine, full(retention_of("r1")))

    answer = await plane.report(engine, held(retention_of("r2")))

    directives = by_retention(answer)
    assert directives["r1"].release is EndReason.SUPERSEDED
    assert directives["r1"].fencing_token == older.fencing_token
    assert directives["r2"].renew == 30.0
    assert plane.manager.get(older.name).state is LeaseState.RELEASING
    assert (await plane.report(engine, held())).directives == ()

    await plane.report(engine, EngineReport(ended=(("r1", EndReason.RELEASED),)))

    ended = plane.manager.get(older.name)
    assert (ended.state, ended.end_reason) == (LeaseState.ENDED, EndReason.SUPERSEDED)


async def test_supersession_reaches_over_engines(plane: StatePlane) -> None:
    """A session that moved to another engine leaves nothing behind on the first."""
    first, second = await plane.register(engine_of("d0")), await plane.register(engine_of("d1"))
    older = await plane.held_lease(first, full(retention_of("r1")))
    await plane.report(second, full(retention_of("r1")))

    answer = await plane.report(first, held())

    assert (Directive("r1", older.name, older.fencing_token, release=EndReason.SUPERSEDED),) == (
        answer.directives
    )


async def test_other_sessions_are_not_superseded(plane: StatePlane) -> None:
    """Keys that differ in any part do not touch each other's leases."""
    engine = await plane.register()
    keys = [
        replace(key_of(), **{part: "x"}) for part in ("tenant", "model", "adapter", "session_id")
    ]
    retentions = [
        replace(retention_of(f"r{number}"), session_key=key)
        for number, key in enumerate([key_of(), *keys])
    ]

    answer = await plane.report(engine, full(*retentions))

    assert [directive.renew for directive in answer.directives] == [30.0] * 5


async def test_a_superseded_lease_ends_at_its_deadline_without_the_engines_word(
    plane: StatePlane,
) -> None:
    """Nothing waits for a confirmation that never comes."""
    engine = await plane.register(ttl=300.0)
    older = await plane.held_lease(engine, full(retention_of("r1")))
    await plane.report(engine, held(retention_of("r2")))

    await plane.clock.advance(34.9)
    await plane.manager.sweep()
    assert plane.manager.get(older.name).state is LeaseState.RELEASING
    await plane.clock.advance(0.1)
    await plane.manager.sweep()

    assert plane.manager.get(older.name).end_reason is EndReason.SUPERSEDED


async def test_a_release_is_told_again_to_a_new_stream(plane: StatePlane) -> None:
    """The answer that carried it may have been lost with the stream."""
    engine = await plane.register()
    older = await plane.held_lease(engine, full(retention_of("r1")))
    await plane.report(engine, held(retention_of("r2")))
    reported = retention_of("r1", lease=older.name, fencing_token=older.fencing_token)

    answer = await plane.report(engine, full(reported, retention_of("r2")))

    assert by_retention(answer)["r1"].release is EndReason.SUPERSEDED
