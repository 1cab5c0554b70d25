"""Names, tokens and bounds of new leases. Pure."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from kvplane_services.errors import InvalidRequest, LeaseFenced
from kvplane_services.lease.model import DigestChain, Handle, Lease
from kvplane_services.lease.reports import RetentionReport

_LEASE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_MAX_RETENTION_ID_BYTES = 512
_MAX_DECISION_ID_BYTES = 256
_MAX_MESSAGE_DIGEST_BYTES = 64
_PREFIX = "leases/"
# vLLM's handles are three deep. A handle that readers cannot take apart and put together again
# would fail their turns.
_MAX_HANDLE_DEPTH = 32


def lease_id_for(
    engine_id: str, epoch: int, retention_id: str, *, taken: Callable[[str], bool]
) -> str:
    """The id of the lease on a retention: the same for the same retention, free of `taken` ones."""
    attempt = 0
    while True:
        parts = json.dumps([engine_id, epoch, retention_id, attempt]).encode()
        lease_id = hashlib.blake2b(parts, digest_size=12).hexdigest()
        if not taken(lease_id):
            return lease_id
        attempt += 1


def lease_id_of(name: str) -> str | None:
    """The id in `leases/{lease}`, or None if the name is not of that form."""
    lease_id = name.removeprefix(_PREFIX)
    if name == lease_id or not _LEASE_ID.fullmatch(lease_id):
        return None
    return lease_id


def check_retention_id(retention_id: str, *, field: str) -> None:
    """Checks an engine's own name for a retention. Raises InvalidRequest."""
    if not retention_id or len(retention_id.encode()) > _MAX_RETENTION_ID_BYTES:
        raise _invalid(f"{field}.retention_id", f"needs 1 to {_MAX_RETENTION_ID_BYTES} bytes")


def check_report(report: RetentionReport, *, field: str) -> None:
    """Checks what is reported of a retention.

    Raises:
        InvalidRequest: Something is missing or out of bounds; names the field.

    """
    check_retention_id(report.retention_id, field=field)
    report.session_key.validate()
    _check_content(
        decision_id=report.decision_id,
        message_digest=report.message_digest,
        tokens=report.tokens,
        blocks=report.blocks,
        handle=report.handle,
        field=field,
    )


def check_lease(lease: Lease, *, field: str) -> None:
    """Checks a lease that a caller asks to be granted.

    Raises:
        InvalidRequest: Something is missing or out of bounds; names the field.

    """
    check_retention_id(lease.retention_id, field=field)
    lease.session_key.validate()
    _check_content(
        decision_id=lease.decision_id,
        message_digest=lease.message_digest,
        tokens=lease.tokens,
        blocks=lease.blocks,
        handle=lease.handle,
        field=field,
    )
    if len(lease.history_digest) > _MAX_MESSAGE_DIGEST_BYTES:
        raise _invalid(
            f"{field}.history_digest", f"has more than {_MAX_MESSAGE_DIGEST_BYTES} bytes"
        )


def check_token(lease: Lease, fencing_token: int) -> None:
    """Checks the token that came with a use of a lease. Raises LeaseFenced."""
    if lease.fencing_token != fencing_token:
        raise LeaseFenced(
            f"{lease.name} has another fencing token than {fencing_token}: read it again",
            lease=lease.name,
        )


def _check_content(
    *,
    decision_id: str,
    message_digest: bytes,
    tokens: int,
    blocks: int,
    handle: Handle,
    field: str,
) -> None:
    if len(decision_id.encode()) > _MAX_DECISION_ID_BYTES:
        raise _invalid(f"{field}.decision_id", f"has more than {_MAX_DECISION_ID_BYTES} bytes")
    if len(message_digest) > _MAX_MESSAGE_DIGEST_BYTES:
        raise _invalid(
            f"{field}.message_digest", f"has more than {_MAX_MESSAGE_DIGEST_BYTES} bytes"
        )
    if tokens < 1:
        raise _invalid(f"{field}.tokens", "must be at least 1")
    if blocks < 1:
        raise _invalid(f"{field}.blocks", "must be at least 1")
    _check_handle(handle, field=f"{field}.handle")


def _check_handle(handle: Handle, *, field: str) -> None:
    text = handle.kv_transfer_params
    try:
        params = json.loads(text)
    except (ValueError, RecursionError):
        params = None
    # Most texts have too few brackets to be deep, which is quicker to see than how they nest.
    brackets = text.count(b"{") + text.count(b"[")
    if not isinstance(params, dict) or (brackets > _MAX_HANDLE_DEPTH and _is_deep(params)):
        raise _invalid(
            f"{field}.kv_transfer_params",
            f"must be one JSON object that nests at most {_MAX_HANDLE_DEPTH} deep",
        )
    if handle.digests is not None:
        _check_digests(handle.digests, field=f"{field}.digests")


def _is_deep(params: dict[str, Any]) -> bool:
    level: list[Any] = [params]
    for _ in range(_MAX_HANDLE_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
    return bool(level)


def _check_digests(chain: DigestChain, *, field: str) -> None:
    if chain.chunk_tokens < 1:
        raise _invalid(f"{field}.chunk_tokens", "must be at least 1")
    if len(chain.digests) != -(-chain.tokens // chain.chunk_tokens):
        raise _invalid(f"{field}.digests", "must be one for each chunk of tokens")


def _invalid(field: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{field} {what}", field=field)
