"""`kvplane registry`: SessionService, following the lease manager of another process."""

from kvplane_services.adapters.grpc_feeds import lease_feed
from kvplane_services.adapters.grpc_lease_control import RemoteLeaseControl
from kvplane_services.clock import Clock
from kvplane_services.main.listeners import grpc_server, serving_grpc
from kvplane_services.main.parts import new_replica, registry_part
from kvplane_services.main.peers import plane_of
from kvplane_services.main.process import background, say, until_stopped
from kvplane_services.main.store import REGISTRY_TABLES, opened_store, place_of
from kvplane_services.settings import RegistrySettings


async def run_registry(settings: RegistrySettings, *, clock: Clock) -> None:
    """Runs until a signal asks to stop.

    Raises:
        InvalidRequest: The settings do not fit together.
        OSError: The address is taken.
        StoreRefused: The store will not serve this process.
        Unavailable: The store does not answer, at the start.

    """
    async with (
        opened_store(settings.store, tables=REGISTRY_TABLES, clock=clock) as store,
        until_stopped(delay=settings.stop.delay, clock=clock) as stop,
        plane_of(settings.peers, clock=clock) as plane,
    ):
        replica = new_replica()
        registry = registry_part(
            settings.sessions,
            replica=replica,
            store=store,
            leases=lease_feed(plane, clock=clock),
            control=RemoteLeaseControl(plane=plane),
            clock=clock,
        )
        server = grpc_server(settings.grpc)
        registry.add_to(server)
        async with background(*registry.loops()), serving_grpc(server, settings.grpc, stop=stop):
            say(f"{replica}, state in {place_of(settings.store)}")
            await stop.due.wait()
