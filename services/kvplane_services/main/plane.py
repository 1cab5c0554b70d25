"""`kvplane up`: everything in one process, with the embedded store."""

from kvplane_services.adapters.memory import MemoryStore
from kvplane_services.clock import Clock
from kvplane_services.main.listeners import grpc_server, serving_gateway, serving_grpc
from kvplane_services.main.parts import add_registry, leases_part, registry_part, router_part
from kvplane_services.main.prober import prober_of
from kvplane_services.main.process import background, until_stopped
from kvplane_services.settings import PlaneSettings


async def run_plane(settings: PlaneSettings, *, clock: Clock) -> None:
    """Runs until a signal asks to stop; then finishes turns, then calls, then ends.

    Raises:
        InvalidRequest: The settings do not fit together.
        OSError: An address is taken.

    """
    store = MemoryStore(clock=clock)
    leases = leases_part(settings, store=store, clock=clock)
    registry = registry_part(
        settings.sessions,
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
        clock=clock,
    )
    prober = prober_of(
        settings.engines, section=settings.prober, directory=leases.directory, clock=clock
    )
    server = grpc_server(settings.grpc)
    leases.add_to(server)
    add_registry(server, registry)
    router.add_to(server)
    async with (
        until_stopped() as stopped,
        background(*leases.loops(), registry.run(), *router.loops(), *prober),
        serving_grpc(server, settings.grpc),
        serving_gateway(settings.gateway, router=router.decider, clock=clock),
    ):
        await stopped.wait()
