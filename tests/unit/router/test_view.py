import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from kvplane_services.engine.model import Engine, EngineState
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.router.view import RouterView
from kvplane_services.store.model import Event, Removed, Reset, Synced, Upserted
from tests.unit.router.fleet import Fleet, decode, key, lease, prefill


async def test_newest_grant_of_a_session_is_live() -> None:
    """Where two grants overlap, the larger fencing token counts, whatever came first."""
    fleet = Fleet()
    newer = fleet.grant(lease(lease_id="b", token=2))
    older = fleet.grant(lease(lease_id="a", token=1))
    assert fleet.view.live_lease(key()) == newer
    fleet.end(newer, EndReason.RECLAIMED)
    assert fleet.view.live_lease(key()) == older
    fleet.end(older, EndReason.SUPERSEDED)
    assert fleet.view.live_lease(key()) is None
    ended = fleet.view.ended_lease(key())
    assert ended is not None
    assert (ended.lease, ended.how) == (newer.name, "ended: reclaimed")


async def test_refreshed_handle_replaces_the_old_one() -> None:
    """A lease that comes again with another handle is given out with that one."""
    fleet = Fleet()
    fleet.grant(lease())
    fresh = fleet.grant(lease(handle=b'{"fresh": true}'))
    assert fleet.view.live_lease(key()) == fresh


async def test_releasing_lease_is_not_live() -> None:
    """Handles of a lease that is being released are no longer given out."""
    fleet = Fleet()
    fleet.grant(replace(fleet.grant(lease()), state=LeaseState.RELEASING))
    assert fleet.view.live_lease(key()) is None
    ended = fleet.view.ended_lease(key())
    assert ended is not None
    assert ended.how == "is being released"


async def test_forgetting_an_ended_lease_keeps_its_reason() -> None:
    """When the manager forgets an ended lease, the reason stays known here."""
    fleet = Fleet()
    one = fleet.grant(lease())
    fleet.end(one, EndReason.EXPIRED)
    fleet.view.apply_lease(Removed(one.lease_id, 2))
    ended = fleet.view.ended_lease(key())
    assert ended is not None
    assert ended.how == "ended: expired"


async def test_restarted_source_is_given_time() -> None:
    """What a restarted plane does not name is kept for restart_grace, then dropped."""
    fleet = Fleet(prefill(), decode())
    fleet.grant(lease())
    for event in (Reset(), Synced(5)):
        fleet.view.apply_engine(event)
        fleet.view.apply_lease(event)
    await fleet.clock.advance(fleet.config.restart_grace - 1)
    fleet.put(prefill())
    fleet.view.lapse()
    assert fleet.view.live_lease(key()) is not None
    assert fleet.view.engine("engines/d") is not None
    await fleet.clock.advance(1)
    fleet.view.lapse()
    assert fleet.view.live_lease(key()) is None
    ended = fleet.view.ended_lease(key())
    assert ended is not None
    assert "no longer known" in ended.how
    assert fleet.view.engine("engines/d") is None
    assert fleet.view.engine("engines/p") is not None
    assert [one.engine_id for one in fleet.view.serving("m")] == ["p"]


async def test_new_registration_ends_the_leases_of_older_ones() -> None:
    """Once an engine registered again, what it held before is not given out any more."""
    fleet = Fleet(decode("d", epoch=1), decode("e", epoch=1))
    fleet.grant(lease("s", lease_id="a", engine_id="d", epoch=1, token=1))
    other = fleet.grant(lease("o", lease_id="b", engine_id="e", epoch=1, token=2))
    fleet.put(decode("d", epoch=2))
    assert fleet.view.live_lease(key("s")) is None
    ended = fleet.view.ended_lease(key("s"))
    assert ended is not None
    assert "registered again" in ended.how
    assert fleet.view.live_lease(key("o")) == other
    again = fleet.grant(lease("s", lease_id="a", engine_id="d", epoch=2, token=1))
    assert fleet.view.live_lease(key("s")) == again


async def test_named_again_after_a_reset_stays() -> None:
    """What the source names between Reset and Synced is not doubted."""
    fleet = Fleet(decode())
    one = fleet.grant(lease())
    fleet.view.apply_lease(Reset())
    fleet.grant(one)
    fleet.view.apply_lease(Synced(5))
    await fleet.clock.advance(1000)
    fleet.view.lapse()
    assert fleet.view.live_lease(key()) == one


async def test_what_vanishes_is_given_time() -> None:
    """What is removed while it was live may be put back: it is kept for restart_grace."""
    fleet = Fleet(decode())
    one = fleet.grant(lease())
    fleet.vanish("d")
    fleet.view.apply_lease(Removed(one.lease_id, 2))
    await fleet.clock.advance(fleet.config.restart_grace - 1)
    fleet.view.lapse()
    assert fleet.view.engine("engines/d") is not None
    assert fleet.view.live_lease(key()) == one
    await fleet.clock.advance(1)
    fleet.view.lapse()
    assert fleet.view.engine("engines/d") is None
    assert fleet.view.live_lease(key()) is None
    ended = fleet.view.ended_lease(key())
    assert ended is not None
    assert "no longer known" in ended.how


async def test_what_is_put_back_stays() -> None:
    """What vanished and came again is not doubted any more."""
    fleet = Fleet(decode())
    one = fleet.grant(lease())
    fleet.vanish("d")
    fleet.view.apply_lease(Removed(one.lease_id, 2))
    fleet.put(decode())
    fleet.grant(one)
    await fleet.clock.advance(1000)
    fleet.view.lapse()
    assert fleet.view.engine("engines/d") is not None
    assert fleet.view.live_lease(key()) == one


async def test_deregistered_engine_is_gone_at_once() -> None:
    """An engine that was lost, as one is that deregisters, is gone when it is removed."""
    fleet = Fleet(decode())
    fleet.remove("d")
    assert fleet.view.engine("engines/d") is None
    assert list(fleet.view.serving("m")) == []


async def test_a_million_leases_lapse_in_parts() -> None:
    """Forgetting many leases does not keep a decision waiting for all of them."""
    fleet = Fleet()
    for number in range(25):
        fleet.grant(lease(f"s{number}", lease_id=f"l{number}"))
    for event in (Reset(), Synced(5)):
        fleet.view.apply_lease(event)
    await fleet.clock.advance(fleet.config.restart_grace)
    left = []
    while fleet.view.lapse(most=10):
        left.append(
            sum(fleet.view.live_lease(key(f"s{number}")) is not None for number in range(25))
        )
    assert left == [15, 5]
    assert fleet.view.live_lease(key("s24")) is None


async def test_removed_while_starting_over_is_gone_at_once() -> None:
    """The removal of what is over is believed at any time."""
    fleet = Fleet(decode())
    fleet.view.apply_engine(Reset())
    fleet.remove("d")
    fleet.view.apply_engine(Synced(5))
    assert fleet.view.engine("engines/d") is None
    await fleet.clock.advance(1000)
    fleet.view.lapse()


async def test_a_model_is_served_once_it_can_be_decoded() -> None:
    """Prefill engines alone end no turn: a gateway is not ready with only those."""
    fleet = Fleet(prefill())
    assert fleet.view.served_models() == ()
    assert fleet.view.any_alive
    fleet.put(decode())
    assert fleet.view.served_models() == ("m",)


async def test_models_of_lost_engines_are_known_but_not_served() -> None:
    """A model whose engines are lost or gone is no longer listed, and not forgotten."""
    fleet = Fleet(decode("d", models=("b", "a")))
    assert fleet.view.served_models() == ("a", "b")
    fleet.put(decode("d", models=("b", "a"), state=EngineState.LOST))
    assert fleet.view.served_models() == ()
    fleet.remove("d")
    assert fleet.view.ever_served("a")
    assert not fleet.view.ever_served("c")


async def test_ended_leases_are_remembered_in_bounds() -> None:
    """The oldest ended lease is forgotten first."""
    fleet = Fleet()
    fleet.view._ended._limit = 2
    for number in range(3):
        one = lease(f"s{number}", lease_id=f"l{number}")
        fleet.end(fleet.grant(one), EndReason.EXPIRED)
    assert fleet.view.ended_lease(key("s0")) is None
    assert fleet.view.ended_lease(key("s2")) is not None


async def test_the_full_state_is_waited_for_a_while() -> None:
    """Who serves from the view can wait until it has both feeds, or for as long as it likes."""
    fleet = Fleet()
    assert await fleet.view.wait_synced(0.0)
    view = RouterView(clock=fleet.clock, grace=1.0, memory=10)
    async with asyncio.TaskGroup() as tasks:
        waited = [tasks.create_task(view.wait_synced(seconds)) for seconds in (1.0, 3.0)]
        await fleet.clock.wait_for_sleepers(2)
        view.apply_engine(Synced(1))
        await fleet.clock.advance(2.0)
        view.apply_lease(Synced(1))
    assert [one.result() for one in waited] == [False, True]


async def test_view_follows_both_feeds() -> None:
    """Running the view takes in what the feeds send."""
    fleet = Fleet()

    async def engines() -> AsyncIterator[Event[Engine]]:
        yield Upserted("d", decode(), 1)
        yield Synced(1)

    async def leases() -> AsyncIterator[Event[Lease]]:
        yield Upserted("l1", lease(), 1)
        yield Synced(1)

    await fleet.view.run(engines=engines, leases=leases)
    assert fleet.view.synced
    assert fleet.view.engine("engines/d") is not None
    assert fleet.view.live_lease(key()) is not None
