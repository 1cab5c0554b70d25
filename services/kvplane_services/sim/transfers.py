"""What `kv_transfer_params` ask of an engine, and what it answers: vLLM's pull rules.

Follows vLLM's NIXL pull scheduler, and kvplane's connector on top of it: a handle is cut to the
tokens that its proof shares with the prompt, and a handle without proof is not read at all.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvplane.digest import common_prefix
from kvplane.transfer_params import decode_proof
from kvplane_services.sim.request import Request


@dataclass(frozen=True, slots=True)
class Peer:
    """Another engine's side channel; `engine_id` is the process that must answer there."""

    host: str
    port: int
    engine_id: str


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """Blocks to read from another engine.

    Attributes:
        peer: Where.
        request_id: The owner's name for what is read.
        block_ids: What to read, first to last. Empty: only tell the owner.
        tokens: Leading tokens of the prompt whose KV is there after the read.
        expiry: When the owner may give the blocks away, on the owner's clock. None: unknown.

    """

    peer: Peer
    request_id: str
    block_ids: tuple[int, ...]
    tokens: int
    expiry: float | None


def plan_read(
    request: Request, *, cached_tokens: int, block_size: int, stock: bool
) -> RemoteRead | None:
    """What to read for a request whose first `cached_tokens` are in the local prefix cache.

    None if its parameters ask for no read, are broken, or prove nothing. A prefill leg that has
    all that it could read already tells the owner only under the stock connector, which frees
    the blocks by that. A decode leg that is not told until when its blocks are staged reads
    nothing, and tells the owner.
    """
    params = request.params or {}
    blocks = _block_ids(params.get("remote_block_ids"))
    peer = _peer(params)
    remote_id = params.get("remote_request_id")
    if not blocks or peer is None or not isinstance(remote_id, str):
        return None
    expiry = _number(params.get("remote_blocks_expiry_time"))
    if request.is_decode_leg:
        tokens = len(request.prompt) if stock or expiry is not None else 0
    elif not request.is_prefill_leg:
        return None
    elif stock:
        tokens = min(_whole(params.get("remote_num_tokens")), len(request.prompt))
    else:
        tokens = _proved(request)
        blocks = blocks[: -(-tokens // block_size)]
        if expiry is None or tokens <= cached_tokens:
            return None
    # vLLM aligns local and remote blocks at their ends, not at their starts.
    wanted = -(-tokens // block_size) - cached_tokens // block_size
    return RemoteRead(
        peer=peer,
        request_id=remote_id,
        block_ids=tuple(blocks[-wanted:]) if tokens > cached_tokens else (),
        tokens=tokens,
        expiry=expiry,
    )


def answer_params(
    request: Request,
    *,
    address: Peer,
    tokens: int,
    expiry: float | None,
) -> dict[str, Any]:
    """What the answer says of the blocks that stay after a request.

    Args:
        request: The request, finished.
        address: This engine's side channel.
        tokens: Tokens whose KV the blocks hold.
        expiry: When they go, on this engine's exported clock; None if it does not say.

    """
    params: dict[str, Any] = {
        "do_remote_prefill": request.is_prefill_leg,
        "do_remote_decode": not request.is_prefill_leg,
        "remote_block_ids": [list(request.block_ids)],
        "remote_engine_id": address.engine_id,
        "remote_request_id": request.request_id,
        "remote_host": address.host,
        "remote_port": address.port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": expiry,
        "transfer_mode": "pull",
    }
    if request.is_prefill_leg and request.sources is not None:
        params["remote_prefill_cached_tokens"] = (
            request.sources.local_cache + request.sources.external
        )
    return params


def peer_to_tell(params: Mapping[str, Any] | None) -> tuple[Peer, str] | None:
    """Whom a request that ends before its read must tell, so that the blocks come free there."""
    params = params or {}
    peer = _peer(params)
    remote_id = params.get("remote_request_id")
    if not params.get("do_remote_prefill") or peer is None or not isinstance(remote_id, str):
        return None
    return peer, remote_id


def _proved(request: Request) -> int:
    """Leading tokens of the prompt that the handle's blocks provably hold."""
    proof = decode_proof(request.params)
    if proof is None:
        return 0
    offered = _whole((request.params or {}).get("remote_num_tokens"))
    return min(offered, common_prefix(proof, request.prompt, request.context))


def _peer(params: Mapping[str, Any]) -> Peer | None:
    host, port, engine_id = (
        params.get(key) for key in ("remote_host", "remote_port", "remote_engine_id")
    )
    if isinstance(host, str) and isinstance(port, int) and isinstance(engine_id, str):
        return Peer(host, port, engine_id)
    return None


def _block_ids(value: Any) -> Sequence[int]:
    """Block ids of the one KV cache group: `[[1, 2, 3]]`."""
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], list):
        return ()
    ids = value[0]
    return ids if all(isinstance(block_id, int) for block_id in ids) else ()


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON can spell NaN, infinity, and integers past any float.
    return float(value) if abs(value) <= sys.float_info.max else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
