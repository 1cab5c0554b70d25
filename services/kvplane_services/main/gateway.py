"""`kvplane gateway`: the OpenAI-compatible gateway, asking the router of another process."""

from kvplane_services.adapters.grpc_router import RemoteRouter
from kvplane_services.clock import Clock
from kvplane_services.main.listeners import serving_gateway
from kvplane_services.main.peers import plane_of
from kvplane_services.main.process import until_stopped
from kvplane_services.settings import GatewaySettings


async def run_gateway(settings: GatewaySettings, *, clock: Clock) -> None:
    """Runs until a signal asks to stop; then finishes running turns within their grace.

    Raises:
        InvalidRequest: The settings do not fit together.
        OSError: The address is taken.

    """
    async with (
        until_stopped(delay=settings.stop.delay, clock=clock) as stop,
        plane_of(settings.peers, clock=clock) as plane,
    ):
        router = RemoteRouter(plane=plane)
        async with serving_gateway(settings.gateway, router=router, clock=clock, stop=stop):
            await stop.due.wait()
