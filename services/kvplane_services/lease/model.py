"""What a lease is. Pure data; see lease.proto for the promises and each field's meaning."""

import datetime as dt
import enum
from dataclasses import dataclass

from kvplane_services.session.model import SessionKey


class EndReason(enum.Enum):
    """Why a lease ended."""

    RELEASED = "released"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    RECLAIMED = "reclaimed"
    ENGINE_LOST = "engine_lost"
    FENCED = "fenced"
    CONSUMED = "consumed"


class LeaseState(enum.Enum):
    """The lifecycle of a lease."""

    ACTIVE = "active"
    RELEASING = "releasing"
    ENDED = "ended"


class RenewalOutcome(enum.Enum):
    """What happened to one renewal."""

    RENEWED = "renewed"
    NOT_FOUND = "not_found"
    FENCED = "fenced"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class DigestChain:
    """Digests over the tokens a retention holds, first to last; see lease.proto."""

    algorithm: str
    chunk_tokens: int
    tokens: int
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Handle:
    """What a prefill engine needs to read a retention; the parameters are JSON, opaque here."""

    kv_transfer_params: bytes
    digests: DigestChain | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A holder's wish that a lease be renewed.

    `remaining` in seconds when it was read; 0 for a claim at another replica, which counts it.
    """

    holder: str
    remaining: float


@dataclass(frozen=True, slots=True)
class ClaimNote:
    """That holders at one replica claim a lease whose engine has another home.

    `holders` are those that claimed it when it was written.
    """

    fencing_token: int
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of a session to have a retention stay.

    `lease_id` is the last part of the resource name `leases/{lease}`; `engine_id` that of
    `engines/{engine}`; `ttl` in seconds. As written in the store, a lease has no claims, and a
    `ttl` and `expire_time` only if they are fixed.
    """

    lease_id: str
    session_key: SessionKey
    engine_id: str
    engine_epoch: int
    retention_id: str
    fencing_token: int
    tokens: int
    blocks: int
    handle: Handle
    decision_id: str = ""
    message_digest: bytes = b""
    state: LeaseState = LeaseState.ACTIVE
    end_reason: EndReason | None = None
    reads: int = 0
    claims: tuple[Claim, ...] = ()
    ttl: float = 0.0
    create_time: dt.datetime | None = None
    expire_time: dt.datetime | None = None
    # Why it is RELEASING.
    release_reason: EndReason | None = None

    @property
    def name(self) -> str:
        """Resource name."""
        return f"leases/{self.lease_id}"

    @property
    def engine(self) -> str:
        """Resource name of the engine that holds the blocks."""
        return f"engines/{self.engine_id}"
