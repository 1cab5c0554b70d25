"""Engines, retentions and keys for tests of the plane's state."""

import itertools
from typing import Any

from kvplane_services.engine.model import (
    ConnectorKind,
    Engine,
    EngineBuild,
    KvLayout,
    NixlAddress,
    Role,
)
from kvplane_services.lease.model import DigestChain, Handle, Lease
from kvplane_services.lease.reports import EngineReport, RetentionReport
from kvplane_services.session.model import SessionKey

PLANE_VERSION = "0.1.0"

_PROCESSES = itertools.count()


def engine_of(engine_id: str = "d0", **changes: Any) -> Engine:
    """A decode engine with the kvplane connector, as it describes itself, in a new process."""
    values: dict[str, Any] = {
        "role": Role.DECODE,
        "endpoint": "http://10.0.0.1:8000",
        "models": ("m",),
        "nixl": NixlAddress("10.0.0.1", 5600, f"process-{next(_PROCESSES)}"),
        "layout": KvLayout(block_size=16, total_blocks=1000, dtype="float32"),
        "build": EngineBuild(
            connector=ConnectorKind.KVPLANE,
            connector_version=PLANE_VERSION,
            vllm_version="0.32.0",
        ),
    }
    return Engine(engine_id=engine_id, **(values | changes))


def stock_engine(engine_id: str = "s0", **changes: Any) -> Engine:
    """A decode engine with the stock connector, named by hand."""
    values: dict[str, Any] = {
        "nixl": None,
        "layout": None,
        "build": EngineBuild(connector=ConnectorKind.STOCK),
    }
    return engine_of(engine_id, **(values | changes))


def key_of(session_id: str = "s") -> SessionKey:
    """The key of a session."""
    return SessionKey(tenant="t", model="m", adapter="", session_id=session_id)


def handle_of(expiry: float = 1.0) -> Handle:
    """A handle with a proof over 64 tokens."""
    params = f'{{"remote_blocks_expiry_time": {expiry}}}'.encode()
    return Handle(params, DigestChain("blake2b-128/2", 64, 64, (b"d" * 16,)))


def retention_of(
    retention_id: str = "r1", session_id: str = "s", **changes: Any
) -> RetentionReport:
    """A retention as an engine reports it first."""
    values: dict[str, Any] = {
        "tokens": 64,
        "blocks": 4,
        "handle": handle_of(),
        "remaining": 30.0,
        "decision_id": f"decision-of-{retention_id}",
    }
    return RetentionReport(
        retention_id=retention_id, session_key=key_of(session_id), **(values | changes)
    )


def held(*retentions: RetentionReport) -> EngineReport:
    """A delta report of retentions begun or changed."""
    return EngineReport(retentions=retentions)


def full(*retentions: RetentionReport) -> EngineReport:
    """A full report."""
    return EngineReport(retentions=retentions, full=True)


def lease_for(engine: Engine, retention_id: str = "r1", session_id: str = "s") -> Lease:
    """A lease as a gateway asks for it on an engine with a fixed TTL."""
    return Lease(
        lease_id="",
        session_key=key_of(session_id),
        engine_id=engine.engine_id,
        engine_epoch=engine.epoch,
        retention_id=retention_id,
        fencing_token=0,
        tokens=64,
        blocks=4,
        handle=Handle(b"{}"),
    )
