"""`kvplane router`: RouterService, following the lease manager of another process."""

from kvplane_services.adapters.grpc_feeds import engine_feed, lease_feed
from kvplane_services.adapters.grpc_lease_control import RemoteLeaseControl
from kvplane_services.clock import Clock
from kvplane_services.main.listeners import grpc_server, serving_grpc
from kvplane_services.main.parts import router_part
from kvplane_services.main.peers import plane_of
from kvplane_services.main.process import background, until_stopped
from kvplane_services.settings import RouterSettings

# Seconds that a lease manager may take to tell all that it knows; a router serves without it then.
_PATIENCE = 5.0


async def run_router(settings: RouterSettings, *, clock: Clock) -> None:
    """Runs until a signal asks to stop.

    Raises:
        InvalidRequest: The settings do not fit together.
        OSError: The address is taken.

    """
    async with (
        until_stopped(delay=settings.stop.delay, clock=clock) as stop,
        plane_of(settings.peers, clock=clock) as plane,
    ):
        control = RemoteLeaseControl(plane=plane)
        router = router_part(
            settings.router,
            engines=engine_feed(plane, clock=clock),
            leases=lease_feed(plane, clock=clock),
            control=control,
            fixed_control=control,
            clock=clock,
        )
        server = grpc_server(settings.grpc)
        router.add_to(server)
        async with background(*router.loops()):
            # One of several routers is not asked before it knows what the others know.
            await router.view.wait_synced(_PATIENCE)
            async with serving_grpc(server, settings.grpc, stop=stop):
                await stop.due.wait()
