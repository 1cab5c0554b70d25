"""`kvplane up`: everything in one process."""

from kvplane_services.clock import Clock
from kvplane_services.main.lease_tallies import lease_tallies
from kvplane_services.main.listeners import (
    grpc_server,
    load_gateway,
    serving_gateway,
    serving_grpc,
)
from kvplane_services.main.parts import leases_part, new_replica, registry_part, router_part
from kvplane_services.main.prober import prober_of
from kvplane_services.main.process import background, say, until_stopped
from kvplane_services.main.store import PLANE_TABLES, opened_store, place_of
from kvplane_services.main.store_gauges import store_gauges
from kvplane_services.settings import PlaneSettings


async def run_plane(settings: PlaneSettings, *, clock: Clock) -> None:
    """Runs until a signal asks to stop; then finishes turns, then calls, then ends.

    Raises:
        InvalidRequest: The settings do not fit together.
        OSError: An address is taken.
        StoreRefused: The store will not serve this process.
        Unavailable: The store does not answer, at the start.

    """
    load_gateway()
    async with opened_store(settings.store, tables=PLANE_TABLES, clock=clock) as store:
        replica = new_replica()
        leases = leases_part(settings, replica=replica, store=store, clock=clock)
        registry = registry_part(
            settings.sessions,
            replica=replica,
            store=store,
            leases=leases.manager.feed(),
            control=leases.manager,
            clock=clock,
        )
        router = router_part(
            settings.router,
            engines=leases.directory.feed(),
            leases=leases.manager.feed(),
            control=leases.manager,
            fixed_control=leases.manager,
            clock=clock,
        )
        prober = prober_of(
            settings.engines, section=settings.prober, directory=leases.directory, clock=clock
        )
        server = grpc_server(settings.grpc)
        leases.add_to(server)
        registry.add_to(server)
        router.add_to(server)
        async with (
            until_stopped(delay=settings.stop.delay, clock=clock) as stop,
            background(*leases.loops(), *registry.loops(), *router.loops(), *prober),
            serving_grpc(server, settings.grpc, stop=stop),
            serving_gateway(
                settings.gateway,
                router=router.decider,
                clock=clock,
                stop=stop,
                gauges=store_gauges(store, leases=leases, registry=registry),
                tallies=lease_tallies(leases),
            ),
        ):
            say(f"{replica}, state in {place_of(settings.store)}")
            await stop.due.wait()
