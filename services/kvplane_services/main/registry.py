"""`kvplane registry`: SessionService, following the lease manager of another process."""

from kvplane_services.adapters.grpc_feeds import lease_feed
from kvplane_services.adapters.grpc_lease_control import RemoteLeaseControl
from kvplane_services.adapters.memory import MemoryStore
from kvplane_services.clock import Clock
from kvplane_services.main.listeners import grpc_server, serving_grpc
from kvplane_services.main.parts import add_registry, registry_part
from kvplane_services.main.peers import plane_of
from kvplane_services.main.process import background, until_stopped
from kvplane_services.settings import RegistrySettings


async def run_registry(settings: RegistrySettings, *, clock: Clock) -> None:
    """Runs until a signal asks to stop.

    Raises:
        InvalidRequest: The settings do not fit together.
        OSError: The address is taken.

    """
    async with until_stopped() as stopped, plane_of(settings.peers, clock=clock) as plane:
        registry = registry_part(
            settings.sessions,
            store=MemoryStore(clock=clock),
            leases=lease_feed(plane, clock=clock),
            control=RemoteLeaseControl(plane=plane),
            clock=clock,
        )
        server = grpc_server(settings.grpc)
        add_registry(server, registry)
        async with background(registry.run()), serving_grpc(server, settings.grpc):
            await stopped.wait()
