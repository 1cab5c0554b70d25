"""Which engines can exchange KV blocks. Pure."""

from kvplane_services.engine.compatibility import differences
from kvplane_services.engine.model import Engine


def mismatch(engine: Engine, partner: Engine) -> str:
    """Why two engines cannot exchange blocks, in words; empty if nothing known forbids it.

    What an engine did not say of itself is not held against it: engines named by hand say
    little, and NIXL's own handshake refuses the rest.
    """
    own, other = engine.build.connector, partner.build.connector
    if own is not other:
        return f"runs the {own.value} connector, {partner.name} the {other.value} one"
    for name, ours, theirs in differences(engine, partner):
        return f"{name} is {ours}, that of {partner.name} {theirs}"
    return ""
