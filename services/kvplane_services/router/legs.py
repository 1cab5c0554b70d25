"""What each leg is sent as `kv_transfer_params`.

The gateway puts a leg's parameters into the request's body. After a prefill leg it lays
the decode leg's over those of the prefill engine's answer.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplane import transfer_params
from kvplane_services.engine.model import ConnectorKind, Engine
from kvplane_services.lease.model import Lease
from kvplane_services.router.model import Leg
from kvplane_services.session.model import SessionKey

_PREFILL_ONLY = json.dumps(dict(transfer_params.PREFILL_ONLY), separators=(",", ":")).encode()


def prefill_leg(engine: Engine) -> Leg:
    """A prefill leg that reads nothing and keeps its blocks for the decode engine."""
    return _leg(engine, _PREFILL_ONLY)


def read_handle(lease: Lease) -> Mapping[str, Any] | None:
    """The lease's handle; None if it is not a JSON object that can be read."""
    try:
        params = json.loads(lease.handle.kv_transfer_params)
    except (ValueError, RecursionError):
        return None
    return params if isinstance(params, dict) else None


def pull_leg(engine: Engine, handle: Mapping[str, Any]) -> Leg:
    """A prefill leg that reads a retention first."""
    return _leg(engine, _encoded({**handle, "do_remote_decode": True, "do_remote_prefill": False}))


def decode_leg(
    engine: Engine,
    *,
    session_key: SessionKey,
    decision_id: str,
    message_digest: bytes,
    alone: bool,
) -> Leg:
    """A decode leg under the turn's mark; `alone` if no prefill leg goes before it.

    The stock connector gets no parameters of ours. What it keeps for a turn that it serves alone
    has no time limit, so such a turn must have none at all.
    """
    if engine.build.connector is ConnectorKind.STOCK:
        return replace(_leg(engine, b""), fixed_retention=engine.fixed_retention)
    mark = transfer_params.TurnMark(
        tenant=session_key.tenant,
        model=session_key.model,
        adapter=session_key.adapter,
        session_id=session_key.session_id,
        decision_id=decision_id,
        message_digest=message_digest,
    )
    params: dict[str, Any] = {transfer_params.KEY: mark.encode()}
    if alone:
        params = {**transfer_params.LOCAL_ONLY, **params}
    return _leg(engine, _encoded(params))


def _leg(engine: Engine, kv_transfer_params: bytes) -> Leg:
    return Leg(
        engine=engine.name,
        epoch=engine.epoch,
        endpoint=engine.endpoint,
        kv_transfer_params=kv_transfer_params,
        data_parallel_rank=engine.data_parallel_rank if engine.data_parallel_size > 1 else None,
    )


def _encoded(params: dict[str, Any]) -> bytes:
    return json.dumps(params, separators=(",", ":")).encode()
