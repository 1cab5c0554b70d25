"""Which engines can exchange KV blocks. Pure."""

from kvplane_services.engine.model import ConnectorKind, Engine, KvLayout


def mismatch(engine: Engine, partner: Engine) -> str:
    """Why two engines cannot exchange blocks, in words; empty if nothing known forbids it.

    What an engine did not say of itself is not held against it: engines named by hand say
    little, and NIXL's own handshake refuses the rest.
    """
    ours, theirs = engine.build, partner.build
    if ours.connector is not theirs.connector:
        return (
            f"runs the {_CONNECTORS[ours.connector]} connector, "
            f"{partner.name} the {_CONNECTORS[theirs.connector]} one"
        )
    for label, own, other in (
        ("vLLM", ours.vllm_version, theirs.vllm_version),
        ("NIXL connector protocol", ours.nixl_connector_version, theirs.nixl_connector_version),
        *_layouts(engine, partner),
    ):
        if own and other and own != other:
            return f"{label} is {own}, that of {partner.name} {other}"
    return ""


_CONNECTORS = {ConnectorKind.KVPLANE: "kvplane", ConnectorKind.STOCK: "stock"}


def _layouts(engine: Engine, partner: Engine) -> tuple[tuple[str, object, object], ...]:
    own, other = engine.layout, partner.layout
    if own is None or other is None:
        return ()
    return (
        ("block size", own.block_size, other.block_size),
        ("KV cache type", own.dtype, other.dtype),
        ("tensor-parallel size", _ranks(own), _ranks(other)),
        ("compatibility hash", own.compatibility_hash, other.compatibility_hash),
    )


def _ranks(layout: KvLayout) -> int:
    return max(1, layout.tensor_parallel_size)
