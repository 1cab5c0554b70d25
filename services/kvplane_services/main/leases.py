"""`kvplane leases`: EngineService and LeaseService."""

from kvplane_services.clock import Clock
from kvplane_services.main.listeners import grpc_server, serving_grpc
from kvplane_services.main.parts import leases_part, new_replica
from kvplane_services.main.prober import prober_of
from kvplane_services.main.process import background, say, until_stopped
from kvplane_services.main.store import LEASES_TABLES, opened_store, place_of
from kvplane_services.settings import LeasesSettings


async def run_leases(settings: LeasesSettings, *, clock: Clock) -> None:
    """Runs until a signal asks to stop.

    Raises:
        InvalidRequest: The settings do not fit together.
        OSError: The address is taken.
        StoreRefused: The store will not serve this process.
        Unavailable: The store does not answer, at the start.

    """
    async with opened_store(settings.store, tables=LEASES_TABLES, clock=clock) as store:
        replica = new_replica()
        leases = leases_part(settings, replica=replica, store=store, clock=clock)
        prober = prober_of(
            settings.engines, section=settings.prober, directory=leases.directory, clock=clock
        )
        server = grpc_server(settings.grpc)
        leases.add_to(server)
        async with (
            until_stopped(delay=settings.stop.delay, clock=clock) as stop,
            background(*leases.loops(), *prober),
            serving_grpc(server, settings.grpc, stop=stop),
        ):
            say(f"{replica}, state in {place_of(settings.store)}")
            await stop.due.wait()
