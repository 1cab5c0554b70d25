"""Connections of a process to the others."""

from kvplane.client.channel import Tls
from kvplane.client.plane import Plane
from kvplane_services.clock import Clock
from kvplane_services.main.listeners import read_pem
from kvplane_services.settings_sections import PeersSection


def plane_of(section: PeersSection, *, clock: Clock) -> Plane:
    """A client of the other processes, to be used as a context manager.

    Raises:
        InvalidRequest: The certificates cannot be read.

    """
    tls = None
    if section.tls_ca is not None:
        tls = Tls(root_certificates=read_pem(section.tls_ca, setting="peers.tls_ca"))
    return Plane(
        section.leases, router=section.router, timeout=section.timeout, tls=tls, clock=clock
    )
